import java.io.PrintStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.List;
import java.util.Scanner;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.connector.source.lib.NumberSequenceSource;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.datastream.AsyncDataStream;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.async.ResultFuture;
import org.apache.flink.streaming.api.functions.async.RichAsyncFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;

/**
 * Flink's own asynchronous operator: numbers in, a call for each, results away, one task.
 *
 * <p>Each line of the standard input is a task: work, rows, "ordered" or "unordered", capacity, URL. The answer is a
 * line: seconds from the first call to the end of the last, and how many calls gave a result; or what went wrong. So
 * the start and the end of a job are not counted.
 */
public final class Peer {
    private static final int ATTEMPTS = 20;
    private static final AtomicLong FIRST = new AtomicLong();
    private static final AtomicLong LAST = new AtomicLong();
    private static final AtomicLong FOUND = new AtomicLong();

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        Scanner tasks = new Scanner(System.in);
        while (tasks.hasNextLine()) {
            String[] task = tasks.nextLine().split(" ");
            FIRST.set(0);
            FOUND.set(0);
            try {
                run(task[0], Long.parseLong(task[1]), task[2].equals("ordered"), Integer.parseInt(task[3]), task[4]);
                answers.println((LAST.get() - FIRST.get()) / 1e9 + " " + FOUND.get());
            } catch (Exception error) {
                error.printStackTrace();
                answers.println(error.toString().lines().findFirst().orElse(""));
            }
            answers.flush();
        }
    }

    private static void run(String work, long rows, boolean ordered, int capacity, String url) throws Exception {
        StreamExecutionEnvironment flink = StreamExecutionEnvironment.createLocalEnvironment(1, new Configuration());
        DataStream<Long> keys = flink.fromSource(
                new NumberSequenceSource(0, rows - 1), WatermarkStrategy.noWatermarks(), "keys");
        Call call = new Call(work, url);
        DataStream<Long> results;
        if (ordered) {
            results = AsyncDataStream.orderedWait(keys, call, 60, TimeUnit.SECONDS, capacity);
        } else {
            results = AsyncDataStream.unorderedWait(keys, call, 60, TimeUnit.SECONDS, capacity);
        }
        results.sinkTo(new DiscardingSink<>());
        flink.execute();
    }

    /** The function: complete at once, after a while, or when the service has answered. */
    private static final class Call extends RichAsyncFunction<Long, Long> {
        private final String work;
        private final String url;
        private transient ScheduledExecutorService timers;
        private transient HttpClient client;

        Call(String work, String url) {
            this.work = work;
            this.url = url;
        }

        @Override
        public void open(OpenContext context) {
            timers = Executors.newSingleThreadScheduledExecutor();
            client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1)
                    .connectTimeout(Duration.ofSeconds(10)).build();
        }

        @Override
        public void close() {
            timers.shutdown();
        }

        @Override
        public void asyncInvoke(Long key, ResultFuture<Long> result) {
            FIRST.compareAndSet(0, System.nanoTime());
            switch (work) {
                case "at_once" -> done(key, result);
                case "fixed" -> timers.schedule(() -> done(key, result), 10, TimeUnit.MILLISECONDS);
                case "skew" -> timers.schedule(
                        () -> done(key, result), key % 200 == 100 ? 200 : 2, TimeUnit.MILLISECONDS);
                default -> ask(key, result, ATTEMPTS);
            }
        }

        /** By hand, because the operator's own retries end with the input: what then fails fails the job. */
        private void ask(Long key, ResultFuture<Long> result, int attempts) {
            HttpRequest request = HttpRequest.newBuilder(URI.create(url + "/rows/" + key)).build();
            client.sendAsync(request, HttpResponse.BodyHandlers.ofString()).whenComplete((answer, error) -> {
                if (error == null && answer.statusCode() == 200) {
                    done(key, result);
                } else if (error != null || attempts == 1) {
                    result.completeExceptionally(error != null ? error : new IllegalStateException("no answer"));
                } else {
                    long seconds = answer.headers().firstValueAsLong("Retry-After").orElse(1);
                    timers.schedule(() -> ask(key, result, attempts - 1), seconds, TimeUnit.SECONDS);
                }
            });
        }

        private static void done(Long key, ResultFuture<Long> result) {
            FOUND.incrementAndGet();
            LAST.set(System.nanoTime());
            result.complete(List.of(key));
        }
    }
}
