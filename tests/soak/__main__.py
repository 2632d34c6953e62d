"""Runs the soak, tells how it goes every 30 seconds, and exits with 1 if it went wrong."""

from __future__ import annotations

import argparse
import faulthandler
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

from asyncio_operator.testing import FakeService
from tests.faults.proxy import Proxy
from tests.servers import PostgresServer
from tests.soak.trouble import Trouble
from tests.soak.watch import STUCK, Sample, Watchdog, dump_stacks, grown, sample
from tests.soak.work import ROWS, Work, service, session

EVERY = 30.0
"""Seconds from one line to the next."""

STEP = 2.0
"""Seconds from one sample to the next."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__, allow_abbrev=False)
    parser.add_argument("--minutes", type=float, default=20.0, help="how long rows come in (default: 20)")
    parser.add_argument("--seed", type=int, default=1, help="of the trouble that is made (default: 1)")
    options = parser.parse_args()
    if not 0 < options.minutes < float("inf"):
        parser.error(f"--minutes is {options.minutes}; it must be more than 0")
    # So that servers and files do not stay behind.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    print(f"soak of {options.minutes:g} minutes with seed {options.seed}", flush=True)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-")))
        fake = stack.enter_context(service(options.seed))
        server = stack.enter_context(PostgresServer())
        http = stack.enter_context(Proxy(("127.0.0.1", urlsplit(fake.url).port or 0)))
        sql = stack.enter_context(Proxy(("127.0.0.1", server.port)))
        spark = session(directory)
        stack.callback(spark.stop)
        work = Work(spark, directory, http, sql, server)
        trouble = Trouble(options.seed, [http, sql], server, work)
        stack.callback(work.stop)
        wrong = run(options.minutes * 60, work, trouble, fake)
        for text in wrong:
            print(f"WRONG: {text}", flush=True)
    print("failed" if wrong else "passed", flush=True)
    return 1 if wrong else 0


def run(seconds: float, work: Work, trouble: Trouble, fake: FakeService) -> list[str]:
    """What went wrong."""
    samples: list[Sample] = []
    watchdog = Watchdog()
    began = time.monotonic()
    told = 0.0
    healed = False
    work.keep_running()
    trouble.start()
    while True:
        # Where this thread is held up itself, nobody else looks after it.
        faulthandler.dump_traceback_later(2 * STUCK, exit=True)
        time.sleep(STEP)
        at = time.monotonic() - began
        coming = at < seconds
        if coming:
            for _ in range(8):
                work.write()
            fake.requests.clear()  # it keeps them all, which would look like a leak
            samples.append(sample(at))
            trouble.rough = at < seconds / 3
        if not healed and not (coming and trouble.is_alive()):
            trouble.stop()
            healed = True
        work.keep_running()
        if at >= told + EVERY or (work.is_done and not coming):
            told = at
            tell(at, work, trouble, samples[-1])
        if work.is_done and not coming:
            break
        if watchdog.is_stuck(work.committed()):
            dump_stacks()
            return [f"no micro-batch was finished for {STUCK:.0f} s, at {at:.0f} s"]
    faulthandler.cancel_dump_traceback_later()
    print(f"trouble: {trouble.made}", flush=True)
    for error in work.failures:
        print(f"the query failed: {error[:300]}", flush=True)
    return work.wrong() + grown(samples)


def tell(at: float, work: Work, trouble: Trouble, now: Sample) -> None:
    print(
        f"{at:5.0f} s: {work.written} rows in, {work.committed() * ROWS} out, {sum(trouble.made.values())} troubles, "
        f"{work.starts} starts, {len(work.failures)} failures; {now.workers} workers, the largest {now.memory:.0f} MB, "
        f"{now.threads} threads, {now.files} files; driver {now.own_memory:.0f} MB, {now.own_threads} threads, "
        f"{now.own_files} files",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
