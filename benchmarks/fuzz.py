"""Damaged traces by the thousand: each is read, with notes on what was lost, or refused in one sentence.

The first one that ends otherwise (a traceback, a loss that no note tells, no end within the limit) stops the run, and
hypothesis prints a small one like it. The seed is fixed: the same code meets the same traces.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import TypeAlias

from hypothesis import HealthCheck, Phase, given, seed, settings

from advisor.schema import Estimate
from benchmarks.result import Count, Measurement, write_result
from tests.mutations import damaged_traces
from tests.outcomes import judge_analysis, judge_reading

Judge: TypeAlias = Callable[[bytes], str]

NUM_READ = int(os.environ.get("FUZZ_READ", "20000"))
NUM_ANALYSED = int(os.environ.get("FUZZ_ANALYSED", "150"))
LONGEST_S = 20.0
"""What takes more of the processor hangs."""
SEED = 4
SHOW_EVERY = 500
FAILURES = ("tracebacks", "hangs", "silent zeros")


class HangError(Exception):
    """An example took more than `LONGEST_S`."""


class Tally:
    """What became of the examples so far."""

    def __init__(self, name: str, judge: Judge) -> None:
        """`name` says what is done to each."""
        self.outcomes: Counter[str] = Counter()
        self.slowest_s = 0.0
        self._name = name
        self._judge = judge

    def take(self, text: bytes) -> None:
        """Judges one example."""
        started = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, LONGEST_S)
        try:
            self.outcomes[self._judge(text)] += 1
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        self.slowest_s = max(self.slowest_s, time.process_time() - started)
        if self.outcomes.total() % SHOW_EVERY == 0:
            print(f"{self._name}: {dict(self.outcomes)}, slowest {self.slowest_s:.2f} s", flush=True)

    def count(self) -> list[Count]:
        """The outcomes, and that nothing else happened: the run would have stopped."""
        outcomes = sorted(self.outcomes.items()) + [(failure, 0) for failure in FAILURES]
        return [Count(name=f"{self._name}: {outcome}", count=count) for outcome, count in outcomes]

    def measure(self) -> Measurement:
        """The processor time of the slowest example."""
        slowest = Estimate(value=self.slowest_s, low=self.slowest_s, high=self.slowest_s, basis="measured")
        name = f"{self._name}: processor time of the slowest example"
        return Measurement(name=name, unit="s", estimate=slowest, num_samples=self.outcomes.total())


def run() -> None:
    """Reads many examples, and analyses fewer from end to end."""
    load_before = os.getloadavg()[0]
    signal.signal(signal.SIGPROF, _tell_hang)
    with TemporaryDirectory() as folder:
        tallies = [
            judge_examples("read", judge_reading, NUM_READ),
            judge_examples("analyse alone", partial(judge_analysis, folder=Path(folder), alone=True), NUM_ANALYSED),
            judge_examples(
                "analyse with a peer", partial(judge_analysis, folder=Path(folder), alone=False), NUM_ANALYSED
            ),
        ]
    write_result(
        "fuzz",
        load_before,
        ("ddp-advisor", "hypothesis", "msgspec", "pandas"),
        [tally.measure() for tally in tallies],
        [count for tally in tallies for count in tally.count()],
    )


def judge_examples(name: str, judge: Judge, num_examples: int) -> Tally:
    """Judges so many examples."""
    tally = Tally(name, judge)
    configure = settings(
        max_examples=num_examples,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    examine = given(damaged_traces())(lambda text: tally.take(text))
    seed(SEED)(configure(examine))()
    return tally


def _tell_hang(signum: int, frame: FrameType | None) -> None:
    raise HangError(f"no end after {LONGEST_S:.0f} s")
