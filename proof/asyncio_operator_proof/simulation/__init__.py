"""Simulations of `enrich` below Spark, on virtual time, from one seed: the parts of `Simulation`.

`draw` makes a `scenario` of a seed, `runs` runs it in a `world` of simulated workers, `judge` compares what has left
with a join and with the laws, and `shrink` makes a failing scenario small.
"""
