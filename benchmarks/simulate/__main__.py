"""`make simulate ARGS=budget`: runs the simulations that are named, or all, and fails if one does not hold."""

from __future__ import annotations

import sys

from benchmarks.simulate import budget

SIMULATIONS = {"budget": budget.main}


def main() -> None:
    """Run them; the exit code says whether all hold."""
    names = sys.argv[1:] or [*SIMULATIONS]
    for name in names:
        if name not in SIMULATIONS:
            sys.exit(f"{name} is no simulation; there are: {', '.join(SIMULATIONS)}")
    good = [SIMULATIONS[name]() for name in names]
    sys.exit(not all(good))


if __name__ == "__main__":
    main()
