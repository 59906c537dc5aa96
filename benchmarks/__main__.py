"""Runs every benchmark, or those that are named: `python -m benchmarks [NAME…]`."""

from __future__ import annotations

import sys

from benchmarks import (
    accuracy,
    analysis,
    baseline,
    coverage,
    ddp_overhead,
    fuzz,
    many_ranks,
    parse,
    powersgd,
    start_up,
    what_if,
)

BENCHMARKS = {
    "start_up": start_up.run,
    "what_if": what_if.run,
    "parse": parse.run,
    "fuzz": fuzz.run,
    "coverage": coverage.run,
    "ddp_overhead": ddp_overhead.run,
    "accuracy": accuracy.run,
    "baseline": baseline.run,
    "analysis": analysis.run,
    "many_ranks": many_ranks.run,
    "powersgd": powersgd.run,
}


def main() -> None:
    """Runs the benchmarks named on the command line, else all of them."""
    unknown = set(sys.argv[1:]) - set(BENCHMARKS)
    if unknown:
        sys.exit(f"error: There is no benchmark {min(unknown)!r}: choose of {', '.join(BENCHMARKS)}.")
    for name in sys.argv[1:] or BENCHMARKS:
        BENCHMARKS[name]()


main()
