"""What one rank did for each update of its weights: its backwards, what each of them reduced, what was cleared.

An update holds all backwards since the optimizer's step before, so it is told by the optimizer and not by the steps of
the profiler, which may begin anywhere in the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from advisor.collectives import Collective
from advisor.exchange import classify_collective
from advisor.intervals import build_intervals
from advisor.readers.names import (
    ACCUMULATE_GRAD,
    ACCUMULATE_GRAD_OP,
    COLLECTIVE_OP,
    LOSS_OPERATOR,
    OPTIMIZER_STEP,
    OPTIMIZER_ZERO_GRAD,
)
from advisor.tables import match_names
from advisor.timeline import RankTimeline

Times: TypeAlias = npt.NDArray[np.int64]

MOST_SMALL_ELEMENTS = 1024
"""Collectives up to this size that are no part of DDP exchange counts, norms or metrics, and no gradients."""


class Gradient(NamedTuple):
    """One gradient; -1 and "" where the trace has no shapes."""

    num_elements: int
    dtype: str


@dataclass(frozen=True)
class MicroStep:
    """One backward of a DDP module, and what the host launched in it."""

    step: int
    num_gradients: int
    gradients: tuple[Gradient, ...]
    """In ready order; empty where the trace does not tell them."""
    buckets: tuple[Collective, ...]
    """In launch order."""
    num_exchanges: int
    """Collectives of any kind, but for those of SyncBatchNorm, which carry no gradients."""
    loss_elements: int
    """Of the input of the last loss before it; -1 where unknown."""

    @property
    def num_reduced(self) -> int:
        """Elements in its buckets."""
        return sum(bucket.num_elements for bucket in self.buckets)


@dataclass(frozen=True)
class Update:
    """All backwards up to an update of the weights."""

    rank: int
    micro_steps: tuple[MicroStep, ...]
    num_optimizer_steps: int
    cleared_after: tuple[int, ...]
    """The micro-steps after which gradients were cleared although another one followed before the update."""
    is_reduced_by_hand: bool
    """Whether something as large as gradients was reduced between its last backward and the next one."""
    num_small_exchanges: int
    """Collectives that are too small to carry gradients and belong to no part of DDP."""

    @property
    def step(self) -> int:
        """The step of its last backward."""
        return self.micro_steps[-1].step

    @property
    def ends_silent(self) -> bool:
        """Whether its last backward computed gradients that nobody exchanged."""
        last = self.micro_steps[-1]
        return last.num_gradients > 0 and last.num_exchanges == 0 and not self.is_reduced_by_hand


class _Backward(NamedTuple):
    step: int
    start_ns: int
    end_ns: int
    finish_ns: int
    """When backward() returned."""


def find_updates(timeline: RankTimeline, collectives: Sequence[Collective]) -> tuple[Update, ...]:
    """The updates of one rank that were recorded from their first backward on.

    None where collectives were launched and none was recorded, as without `ProfilerActivity.CUDA`: then nothing is
    known of what was exchanged.
    """
    events = timeline.trace.events
    if not collectives and match_names(events, COLLECTIVE_OP.match).any():
        return ()
    host = _Host(timeline, collectives)
    optimizer = events[match_names(events, OPTIMIZER_STEP.match)]
    moments = build_intervals(optimizer["start_ns"], optimizer["end_ns"])[:, 0]  # the steps of wrapped optimizers nest
    places = np.searchsorted([backward.start_ns for backward in host.backwards], moments)
    updates: list[Update] = []
    begin, opened = 0, 0
    for end, first, count in np.column_stack(np.unique(places, return_index=True, return_counts=True)).tolist():
        if end > begin:
            updates.append(host.describe_update(range(begin, end), (opened, int(moments[first])), count))
        begin, opened = end, int(moments[first + count - 1])
    # The recording may begin in the middle of the first one.
    is_cut = len(updates) > 1 and len(updates[0].micro_steps) < len(updates[1].micro_steps)
    return tuple(updates[is_cut:])


class _Host:
    """What the host of one rank did when, in the order of time."""

    def __init__(self, timeline: RankTimeline, collectives: Sequence[Collective]) -> None:
        self.backwards = _list_backwards(timeline)
        self._rank = timeline.trace.rank
        self._collectives = sorted(collectives, key=_launched_ns)
        self._launches = np.array([_launched_ns(c) for c in self._collectives], dtype=np.int64)
        events = timeline.trace.events
        starts = events["start_ns"].to_numpy()
        self._clears = starts[match_names(events, OPTIMIZER_ZERO_GRAD.match)]
        self._nodes = starts[match_names(events, lambda name: name == ACCUMULATE_GRAD)]
        self._gradients = events[match_names(events, lambda name: name == ACCUMULATE_GRAD_OP)]
        self._losses = events[match_names(events, LOSS_OPERATOR.match)]

    def describe_update(self, places: range, window: tuple[int, int], num_optimizer_steps: int) -> Update:
        """The backwards at `places`, between one update of the weights and the next."""
        opened, moment = window
        backwards = [self.backwards[place] for place in places]
        since = [opened, *(backward.finish_ns for backward in backwards[:-1])]
        return Update(
            rank=self._rank,
            micro_steps=tuple(map(self._describe_micro_step, backwards, since)),
            num_optimizer_steps=num_optimizer_steps,
            cleared_after=tuple(
                place
                for place, (one, following) in enumerate(pairwise(backwards))
                if _count(self._clears, one.end_ns, following.start_ns)
            ),
            is_reduced_by_hand=any(
                c.kind in ("all_reduce", "reduce_scatter") and not _is_small(c)
                for c in self._launched(backwards[-1].finish_ns, self._find_next_start(places[-1]))
            ),
            num_small_exchanges=sum(
                _is_small(c) and classify_collective(c) in ("other", "join") for c in self._launched(opened, moment)
            ),
        )

    def _describe_micro_step(self, backward: _Backward, since: int) -> MicroStep:
        roles = [(c, classify_collective(c)) for c in self._launched(backward.start_ns, backward.finish_ns + 1)]
        sizes = _select(self._gradients, backward.start_ns, backward.end_ns)
        losses = _select(self._losses, since, backward.start_ns)["num_elements"]
        num_gradients = _count(self._nodes, backward.start_ns, backward.end_ns)
        gradients = [
            Gradient(int(n), str(dtype)) for n, dtype in zip(sizes["num_elements"], sizes["dtype"], strict=True)
        ]
        return MicroStep(
            step=backward.step,
            num_gradients=num_gradients,
            gradients=tuple(gradients) if len(gradients) == num_gradients else (),
            buckets=tuple(c for c, role in roles if role == "bucket"),
            num_exchanges=sum(role != "sync_batch_norm" for _, role in roles),
            loss_elements=int(losses.iloc[-1]) if len(losses) else -1,
        )

    def _find_next_start(self, place: int) -> int:
        later = self.backwards[place + 1 : place + 2]
        return later[0].start_ns if later else np.iinfo(np.int64).max

    def _launched(self, start_ns: int, end_ns: int) -> list[Collective]:
        low, high = np.searchsorted(self._launches, [start_ns, end_ns])
        return self._collectives[low:high]


def _list_backwards(timeline: RankTimeline) -> list[_Backward]:
    backwards = []
    for step in timeline.steps:
        finish_of = {span.host_start_ns: span.host_end_ns for span in step.find_spans("gradient_finish")}
        for span in step.find_spans("backward"):
            finish = finish_of.get(span.host_end_ns, span.host_end_ns)
            backwards.append(_Backward(step.number, span.host_start_ns, span.host_end_ns, finish))
    return backwards


def _launched_ns(collective: Collective) -> int:
    return collective.launch_ns if collective.launch_ns >= 0 else collective.start_ns


def _is_small(collective: Collective) -> bool:
    return 0 <= collective.num_elements <= MOST_SMALL_ELEMENTS


def _count(times: Times, start_ns: int, end_ns: int) -> int:
    low, high = np.searchsorted(times, [start_ns, end_ns])
    return int(high - low)


def _select(events: pd.DataFrame, start_ns: int, end_ns: int) -> pd.DataFrame:
    low, high = np.searchsorted(events["start_ns"].to_numpy(), [start_ns, end_ns])
    return events.iloc[low:high]
