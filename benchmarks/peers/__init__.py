"""The same work, done by this library and by its alternatives, side by side in one run.

    python -m benchmarks.peers                       everything; environments are made where they are missing
    python -m benchmarks.peers --peer Daft aiometer  only these peers
    python -m benchmarks.peers --work skew http      only this work
    python -m benchmarks.peers Daft --json daft.json one peer alone, with more works and counts: see README.md

A peer is a small program in `programs/`. It runs in its own environment, which is made from `requirements/` with pinned
packages. A program starts once. It reads one `Task` at a time from its standard input, and answers with the seconds
that it took (`task.py`). The sides of a work run in turns: the first turn warms up and is checked, the others count.
The figure is that of the median turn.

There are two groups. Each is compared with this library in the same place: in Spark (two tasks of `CAPACITY` calls
each) and in one pipe (one process, or one task of an engine, with `CAPACITY` calls). A peer that cannot be installed,
or cannot do a work, is listed with the reason. Only the programs know how a peer works.
"""
