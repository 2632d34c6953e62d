"""A soak: a stream that is enriched for as long as is wanted, while its sources, and it itself, have a bad time.

    python -m tests.soak --minutes 20 --seed 7

A stream of files is enriched from an HTTP service and from PostgreSQL, both over a proxy that delays, cuts, resets and
swallows at random; the service answers some requests with errors; PostgreSQL is restarted and killed; Python workers
are killed; the query is stopped and started again. At the end no row may be missing, doubled or wrong, and memory,
threads and file descriptors must be where they were.

`work` is the query and what it asks, `trouble` what happens to it, `watch` what is measured and what is expected of it.
"""
