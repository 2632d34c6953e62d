"""The proof: a simulation of `enrich`, and a checker of histories. Import both from `asyncio_operator.testing`."""
