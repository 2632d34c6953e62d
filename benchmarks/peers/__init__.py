"""The same work, done by this library and by what one would use in its place, side by side in one run.

    python -m benchmarks.peers                       everything; environments are made where they are missing
    python -m benchmarks.peers --peer Daft aiometer  only these peers
    python -m benchmarks.peers --work skew http      only this work

A peer is a small program in `programs/`, run by an environment of its own that is made from `requirements/`, whose
every package has one version. A program starts once, does one `Task` at a time, read from its standard input, and
answers with the seconds that it took (`task.py`). The sides of a work take turns: one that warms up and is checked,
then those that count. The figure is that of the median turn.

There are two groups, each held against this library in the same place: in Spark (two tasks of `CAPACITY` calls each)
and in one pipe (one process, or one task of an engine, with `CAPACITY` calls). A peer that cannot be installed, or
cannot do a work, is listed with the reason. Nothing here knows how a peer does what it does.
"""
