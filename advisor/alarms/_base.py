"""What alarms share: when something happens often enough to be a mistake, and how to point at where it shows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from advisor.schema import BucketSummary, StepSummary
from advisor.updates import Update
from advisor.verdict import Analysis

MOSTLY = 0.5
"""What happens in fewer updates than this is an exception (an epoch's last batch, a skipped update) and no mistake."""


class Place(NamedTuple):
    """Where something shows."""

    rank: int
    step: int


def list_updates(analysis: Analysis) -> list[Update]:
    """The updates of all ranks of a run under DDP with several ranks; none of another run."""
    if analysis.world_size == 1 or not analysis.is_ddp:
        return []
    return [update for rank in analysis.run.ranks for update in rank.updates]


def find_mostly(updates: Collection[Update], is_wrong: Callable[[Update], bool]) -> list[Update]:
    """The updates in which something is wrong, if these are at least `MOSTLY` of all."""
    wrong = [update for update in updates if is_wrong(update)]
    return wrong if len(wrong) >= MOSTLY * len(updates) else []


def list_places(updates: Iterable[Update]) -> frozenset[Place]:
    """Where the updates show."""
    return frozenset(Place(update.rank, update.step) for update in updates)


def list_all_places(analysis: Analysis) -> frozenset[Place]:
    """Every step of every rank."""
    return frozenset(Place(step.rank, step.step) for step in analysis.steps)


def list_ranks(places: Iterable[Place]) -> tuple[int, ...]:
    """Their ranks, sorted."""
    return tuple(sorted({place.rank for place in places}))


def list_steps(places: Iterable[Place]) -> tuple[int, ...]:
    """Their steps, sorted."""
    return tuple(sorted({place.step for place in places}))


def find_rows(table: Iterable[StepSummary | BucketSummary], places: Collection[Place]) -> tuple[int, ...]:
    """The rows of a table of the report that are about these places."""
    return tuple(number for number, row in enumerate(table) if Place(row.rank, row.step) in places)
