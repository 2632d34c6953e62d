"""`make simulate`: simulations of `enrich` from seeds; `make simulate ARGS=budget`: of budgets. Fails if one fails."""

from __future__ import annotations

import argparse
import os
import sys

from examples.stage import positive
from tests.simulate import budget, seeds

SIMULATIONS = {"budget": budget.main}


def main() -> None:
    """Run them; the exit code says whether all hold."""
    parser = argparse.ArgumentParser(prog="make simulate")
    parser.add_argument("names", nargs="*", help=f"other simulations: {', '.join(SIMULATIONS)}")
    parser.add_argument("--seeds", type=positive, help="how many (default: 10,000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=positive, default=min(2, os.cpu_count() or 1), help="processes")
    given = parser.parse_args()
    for name in given.names:
        if name not in SIMULATIONS:
            sys.exit(f"{name} is no simulation; there are: {', '.join(SIMULATIONS)}")
    if given.names and given.seeds:
        parser.error(f"--seeds is for simulations from seeds, not for {', '.join(given.names)}")
    if given.names:
        good = [SIMULATIONS[name]() for name in given.names]
    else:
        good = [seeds.main(given.seeds or 10_000, given.first, given.jobs)]
    sys.exit(not all(good))


if __name__ == "__main__":
    main()
