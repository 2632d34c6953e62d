"""Simulations of `enrich` below Spark, on virtual time, from one seed: the parts of `Simulation`.

| file | what it is |
| --- | --- |
| `scenario` | what happens in a simulation, as plain data |
| `draw` | draws a scenario from a seed |
| `world` | the time, and processes whose loops run in turn on one thread |
| `simulated_workers` | what a simulated Python worker gives to its tasks |
| `tasks` | a task: what feeds it, and what takes its rows |
| `simulated_service` | what is asked, with latency, errors, throttling, lies and outages |
| `source_quota` | the quota of a service, and what its headers say of it |
| `recorded` | an enricher whose calls are written down |
| `distant_coordinator` | a coordinator of budgets that is elsewhere |
| `writing` | the history while it is written |
| `runs` | runs a scenario |
| `judge` | whether the rows are those of a join, and the history keeps the laws |
| `refusals` | whether a budget refused a call rightly |
| `shrink` | makes a failing scenario small |
"""
