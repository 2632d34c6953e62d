import java.io.PrintStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Scanner;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
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
import org.apache.flink.util.CloseableIterator;

/**
 * Flink's own asynchronous operator: numbers in, a call for each, results away or counted, one task.
 *
 * <p>Each line of the standard input is a task: work, rows, "ordered" or "unordered", capacity, URL, file with the keys
 * as a list of JSON ("-": the numbers), seconds until a request has failed, whether answers are counted. The answer is a
 * line: seconds from the first call to the end of the last, how many calls gave a result, and a JSON object with how
 * often each answer came out ("" for none), or null; or what went wrong. So the start and the end of a job are not
 * counted.
 */
public final class Peer {
    private static final int ATTEMPTS = 20;
    private static final Pattern NAME = Pattern.compile("\"name\"\\s*:\\s*\"([^\"]*)\"");
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
                String counted = run(task);
                answers.println((LAST.get() - FIRST.get()) / 1e9 + " " + FOUND.get() + " " + counted);
            } catch (Exception error) {
                error.printStackTrace();
                answers.println(error.toString().lines().findFirst().orElse(""));
            }
            answers.flush();
        }
    }

    private static String run(String[] task) throws Exception {
        long rows = Long.parseLong(task[1]);
        int capacity = Integer.parseInt(task[3]);
        StreamExecutionEnvironment flink = StreamExecutionEnvironment.createLocalEnvironment(1, new Configuration());
        DataStream<Long> keys = flink.fromSource(
                new NumberSequenceSource(0, rows - 1), WatermarkStrategy.noWatermarks(), "keys");
        Call call = new Call(task[0], task[4], task[5], Long.parseLong(task[6]));
        DataStream<String> results;
        if (task[2].equals("ordered")) {
            results = AsyncDataStream.orderedWait(keys, call, 60, TimeUnit.SECONDS, capacity);
        } else {
            results = AsyncDataStream.unorderedWait(keys, call, 60, TimeUnit.SECONDS, capacity);
        }
        if (task[7].equals("false")) {
            results.sinkTo(new DiscardingSink<>());
            flink.execute();
            return "null";
        }
        Map<String, Long> counts = new HashMap<>();
        try (CloseableIterator<String> collected = results.executeAndCollect()) {
            collected.forEachRemaining(answer -> counts.merge(answer, 1L, Long::sum));
        }
        return counts.entrySet().stream()
                .map(count -> "\"" + count.getKey() + "\": " + count.getValue())
                .collect(Collectors.joining(", ", "{", "}"));
    }

    /** The function: complete at once, after a while, or when the service has answered. */
    private static final class Call extends RichAsyncFunction<Long, String> {
        private final String work;
        private final String url;
        private final String file;
        private final Duration patience;
        private transient long[] keys;
        private transient ScheduledExecutorService timers;
        private transient HttpClient client;

        Call(String work, String url, String file, long patience) {
            this.work = work;
            this.url = url;
            this.file = file;
            this.patience = Duration.ofSeconds(patience);
        }

        @Override
        public void open(OpenContext context) throws Exception {
            if (!file.equals("-")) {
                String[] listed = Files.readString(Path.of(file)).replaceAll("[\\[\\] ]", "").split(",");
                keys = Arrays.stream(listed).mapToLong(Long::parseLong).toArray();
            }
            timers = Executors.newSingleThreadScheduledExecutor();
            client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1)
                    .connectTimeout(Duration.ofSeconds(10)).build();
        }

        @Override
        public void close() {
            timers.shutdown();
        }

        @Override
        public void asyncInvoke(Long number, ResultFuture<String> result) {
            FIRST.compareAndSet(0, System.nanoTime());
            switch (work) {
                case "at_once" -> done("1", result);
                case "fixed" -> timers.schedule(() -> done("1", result), 10, TimeUnit.MILLISECONDS);
                case "skew" -> timers.schedule(
                        () -> done("1", result), number % 200 == 100 ? 200 : 2, TimeUnit.MILLISECONDS);
                default -> ask(keys == null ? number : keys[number.intValue()], result, ATTEMPTS);
            }
        }

        /** By hand, because the operator's own retries end with the input: what then fails fails the job. */
        private void ask(long key, ResultFuture<String> result, int attempts) {
            HttpRequest request = HttpRequest.newBuilder(URI.create(url + "/rows/" + key)).timeout(patience).build();
            client.sendAsync(request, HttpResponse.BodyHandlers.ofString()).whenComplete((answer, error) -> {
                if (error == null && answer.statusCode() == 200) {
                    Matcher name = NAME.matcher(answer.body());
                    done(name.find() ? name.group(1) : "1", result);
                } else if (error == null && answer.statusCode() == 404) {
                    done("", result);
                } else if (attempts == 1) {
                    result.completeExceptionally(new IllegalStateException("no answer in " + ATTEMPTS + " attempts"));
                } else {
                    long seconds = error != null ? 0 : answer.headers().firstValueAsLong("Retry-After").orElse(0);
                    double milliseconds = Math.max(1000 * seconds, 100) * ThreadLocalRandom.current().nextDouble(1, 1.1);
                    timers.schedule(() -> ask(key, result, attempts - 1), (long) milliseconds, TimeUnit.MILLISECONDS);
                }
            });
        }

        private static void done(String answer, ResultFuture<String> result) {
            if (!answer.isEmpty()) {
                FOUND.incrementAndGet();
            }
            LAST.set(System.nanoTime());
            result.complete(List.of(answer));
        }
    }
}
