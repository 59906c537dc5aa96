"""Which collective a probe measures next: coarse sizes first, then whatever is known least, while the budget lasts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from advisor.schema import LadderPoint
from advisor.statistics import block_estimate
from workloads.requests import ProbedKind

KIB = 2**10
LEVELS: tuple[tuple[int, ...], ...] = ((8,), (4, 12), (0, 16), (2, 6, 10, 14), (1, 3, 5, 7, 9, 11, 13, 15))
"""The ladder, coarse to fine, as powers of two of a KiB: 1 KiB to 64 MiB. From its middle no rung is far beyond what is
known, so that what a visit will cost can be told."""
ITEM_BYTES = 4
"""Of the largest element that is measured: shares of an array are whole elements of every dtype."""
FEWEST_VISITS = 2
"""Fewer have no interval."""
LATER = 2
"""Levels by which a second visit, or another dtype, comes later."""
MOST_VISITS = 12
"""A condition that is still vague after so many is vague by nature."""
CLOSE_ENOUGH = 0.1
"""A median is known when its 95 % interval is no wider than this share of it."""


@dataclass(frozen=True)
class Condition:
    """What is measured: a collective's kind, dtype and size, how many in flight, and whether all compute meanwhile."""

    kind: ProbedKind
    dtype: str
    num_bytes: int
    """Of the input of each rank."""
    in_flight: int = 1
    under_compute: bool = False

    def __str__(self) -> str:
        size = f"{self.num_bytes / KIB:.4g} KiB" if self.num_bytes < KIB**2 else f"{self.num_bytes / KIB**2:.4g} MiB"
        return f"{self.kind} of {size} of {self.dtype}, {self.manner}"

    def sorting_key(self) -> tuple[str, str, bool, int, int]:
        """By kind, dtype, manner and size."""
        return self.kind, self.dtype, self.under_compute, self.in_flight, self.num_bytes

    @property
    def manner(self) -> str:
        """How it is measured."""
        words = ["two in flight"] * (self.in_flight == 2) + ["under compute"] * self.under_compute
        return ", ".join(words) or "alone"


@dataclass(frozen=True)
class Visit:
    """What one visit of a condition gave: each repetition's ns, the slow-down of computing, and what it took."""

    repetitions_ns: tuple[int, ...]
    compute_slowdown: float | None
    seconds: float


def rank_conditions(
    dtypes: Mapping[ProbedKind, Sequence[str]], world_size: int, *, most_in_flight: int = 2
) -> dict[Condition, int]:
    """Every condition with its turn, the most telling first.

    Coarse sizes come before fine ones, alone and idle before two in flight or under compute, and each dtype some levels
    after the one before it. Kinds take turns, in the order in which they are given.

    Args:
        dtypes: By kind, what it is measured with.
        world_size: Ranks that an array is gathered from or scattered over.
        most_in_flight: 1 leaves out what starts two together.
    """
    positions = range(max(map(len, dtypes.values())))
    manners = product(positions, enumerate(LEVELS), range(1, most_in_flight + 1), (False, True))
    turns = {
        Condition(
            kind, names[position], find_input_bytes(kind, KIB * 2**power, world_size), in_flight, under_compute
        ): level + LATER * position + (in_flight - 1) + under_compute
        for position, (level, powers), in_flight, under_compute in manners
        for power in powers
        for kind, names in dtypes.items()
        if position < len(names)
    }
    return dict(sorted(turns.items(), key=lambda item: item[1]))


def find_input_bytes(kind: ProbedKind, whole_bytes: int, world_size: int) -> int:
    """A rank's input of a collective on an array of about `whole_bytes` that the ranks share evenly.

    Example: 1 KiB on 3 ranks is 85 elements of 4 bytes each: 340 bytes to gather, 1020 to scatter.
    """
    part_bytes = max(1, whole_bytes // (world_size * ITEM_BYTES)) * ITEM_BYTES
    shares = {"all_gather": part_bytes, "reduce_scatter": part_bytes * world_size}
    return shares.get(kind, whole_bytes)


@dataclass
class Plan:
    """The visits so far, and the choice of the next one."""

    turns: dict[Condition, int]
    visits: dict[Condition, list[Visit]] = field(default_factory=dict)
    widths: dict[Condition, float] = field(default_factory=dict)
    """Of the 95 % interval of the median over the median, for conditions with enough visits."""

    def add(self, condition: Condition, visit: Visit) -> None:
        """Keeps a visit."""
        known = self.visits.setdefault(condition, [])
        known.append(visit)
        if len(known) >= FEWEST_VISITS:
            found = block_estimate([each.repetitions_ns for each in known], np.median)
            self.widths[condition] = (found.high - found.low) / found.value

    def choose(self, remaining_s: float) -> Condition | None:
        """The condition to visit next within the time that remains; None where everything is known or nothing fits.

        First each has its turn, twice; then comes the one whose median is known least.
        """
        fitting = [condition for condition in self.turns if self.expect_seconds(condition) <= remaining_s]
        new = [condition for condition in fitting if condition not in self.widths]
        if new:
            return min(new, key=lambda condition: self.turns[condition] + LATER * len(self.visits.get(condition, ())))
        vague = [c for c in fitting if self.widths[c] > CLOSE_ENOUGH and len(self.visits[c]) < MOST_VISITS]
        return max(vague, key=self.widths.__getitem__, default=None)

    def expect_seconds(self, condition: Condition) -> float:
        """What a visit will take: what it took before, else what the nearest size took, by bytes where it is smaller.

        The same kind tells before another one does. Nothing where nothing was visited yet.
        """
        if condition in self.visits:
            return max(visit.seconds for visit in self.visits[condition])
        if not self.visits:
            return 0.0

        def distance(known: Condition) -> tuple[bool, float]:
            return known.kind != condition.kind, abs(math.log(known.num_bytes / condition.num_bytes))

        nearest = min(self.visits, key=distance)
        seconds = max(visit.seconds for visit in self.visits[nearest])
        return seconds * max(1.0, condition.num_bytes / nearest.num_bytes)

    def list_points(self) -> tuple[LadderPoint, ...]:
        """What was measured, by kind, dtype, manner and size."""
        return tuple(
            LadderPoint(
                kind=condition.kind,
                dtype=condition.dtype,
                num_bytes=condition.num_bytes,
                in_flight=condition.in_flight,
                under_compute=condition.under_compute,
                rounds_ns=tuple(visit.repetitions_ns for visit in self.visits[condition]),
                compute_slowdowns=tuple(
                    visit.compute_slowdown for visit in self.visits[condition] if visit.compute_slowdown is not None
                ),
            )
            for condition in sorted(self.visits, key=Condition.sorting_key)
        )

    def list_left_out(self) -> tuple[str, ...]:
        """What the budget did not allow.

        A sentence for what was not begun, one for each kind and dtype that was, and one for what is known only roughly.
        """
        missing = sorted((c for c in self.turns if c not in self.visits), key=Condition.sorting_key)
        num_sizes = sum(map(len, LEVELS))
        seen = dict.fromkeys((condition.kind, condition.dtype) for condition in self.visits)
        unseen = dict.fromkeys(f"{c.kind} of {c.dtype}" for c in missing if (c.kind, c.dtype) not in seen)
        sentences = [f"Left out for lack of time: {', '.join(unseen)}."] if unseen else []
        for kind, dtype in seen:
            counts = Counter(c.manner for c in missing if (c.kind, c.dtype) == (kind, dtype))
            parts = "; ".join(f"{manner} {count}" for manner, count in counts.items())
            if parts:
                sentences.append(f"Left out for lack of time, of {num_sizes} sizes of {kind} of {dtype}: {parts}.")
        rough = {c: w for c in self.visits if (w := self.widths.get(c, math.inf)) > CLOSE_ENOUGH}
        if rough:
            worst = max(rough, key=rough.__getitem__)
            how = f"to {rough[worst] / 2:.0%} either way" if math.isfinite(rough[worst]) else "from one visit only"
            sentences.append(
                f"{len(rough)} of {len(self.visits)} measured conditions are known less closely than "
                f"{CLOSE_ENOUGH / 2:.0%} either way, least of all {worst} ({how})."
            )
        return tuple(sentences)
