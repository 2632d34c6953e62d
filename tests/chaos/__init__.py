"""Chaos (law Y3): jobs on a real cluster of two executors, each with faults of one kind at random moments.

    make chaos                                   100 moments of each kind of fault, 4 in a job
    make chaos ARGS="--times 8"                  8 of each
    make chaos ARGS="--fault worker --seed 17"   one job again

A copy of a slow task comes once in a job. A job enriches rows from an HTTP service in this process, which records every
request. After each job the rows must be those of a job without faults, `check_history` judges the calls, and nothing
may be left behind. One cluster and one session serve all jobs; only drivers that are killed need their own.

`jobs` draws a job and knows its rows, `service` records requests, `cluster` finds the processes, `faults` are the
kinds of faults, `judge` decides, `streams` kills drivers.
"""
