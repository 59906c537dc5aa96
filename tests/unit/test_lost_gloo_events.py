"""Gloo's launches and executions stay paired when one of them was not recorded; nothing else may shift."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import chain, product
from typing import Any

import pytest

from advisor.collectives import Collective, find_collectives, match_collectives
from advisor.readers.chrome import read_chrome_trace
from advisor.timeline import build_timeline
from tests.simulated_schedule import Scenario
from tests.simulator import simulate

LAUNCH, EXECUTION = "c10d::allreduce_", "gloo:all_reduce"
LAUNCH_OR_EXECUTION = ([LAUNCH], [EXECUTION], [LAUNCH, EXECUTION])

SCENARIOS = {
    "sizes that differ, in a queue": ((2.0, 500_000), (4.0, 1_000_000), (6.0, 250_000), (8.0, 125_000)),
    "sizes that differ, in a long queue": ((2.0, 4_000_000), (4.0, 4_100_000), (6.0, 4_200_000), (8.0, 4_300_000)),
    "sizes that differ, without a queue": ((2.0, 5_000), (4.0, 10_000), (6.0, 2_500), (8.0, 1_250)),
    "one size": ((2.0, 5_000), (4.0, 5_000), (6.0, 5_000), (8.0, 5_000)),
    "one size, in a queue": ((2.0, 800_000), (4.0, 800_000), (6.0, 800_000), (8.0, 800_000)),
    "one bucket": ((8.0, 500_000),),
}


def simulate_events(name: str) -> list[list[dict[str, Any]]]:
    """The events of two ranks whose clocks differ, of which the second comes late; gradients fill a bucket each."""
    gradients = SCENARIOS[name]
    scenario = Scenario(
        backend="gloo", gradients=gradients, buckets=(1,) * len(gradients), backward_ms=9.0, copy_ms=0.5,
        segments=((0, 100.0, 1.0),), late_rank=1, late_ms=1.0, clock_offsets_ms=(0.0, 5.0), noise=0.02, seed=1,
    )  # fmt: skip
    return [json.loads(trace)["traceEvents"] for trace in simulate(scenario).traces]


def find(rank: int, events: list[dict[str, Any]]) -> list[Collective]:
    document = {"distributedInfo": {"backend": "gloo", "rank": rank, "world_size": 2}, "traceEvents": events}
    return find_collectives(build_timeline(read_chrome_trace(json.dumps(document).encode(), f"rank{rank}.json")))


def lose(events: list[dict[str, Any]], lost: Iterable[tuple[str, int]]) -> list[dict[str, Any]]:
    """The events without the n-th of a name, in the order of their times, for each (name, n)."""
    ordered = sorted(events, key=lambda event: float(event["ts"]))
    named = {name: [event for event in ordered if event["name"] == name] for name in (LAUNCH, EXECUTION)}
    gone = [id(named[name][number]) for name, number in lost]
    return [event for event in events if id(event) not in gone]


def pairs(collectives: Iterable[Collective]) -> list[tuple[int, int]]:
    return [(c.launch_ns, c.start_ns) for c in collectives]


def expect(whole: list[tuple[int, int]], lost: Iterable[tuple[str, int]]) -> list[tuple[int, int]]:
    """The pairs that are left, -1 for a launch that was lost."""
    launches, executions = ({number for what, number in lost if what == name} for name in (LAUNCH, EXECUTION))
    return [
        (-1 if number in launches else launch, start)
        for number, (launch, start) in enumerate(whole)
        if number not in executions
    ]


@pytest.mark.parametrize("name", SCENARIOS)
def test_what_one_rank_lost_of_a_collective_shifts_nothing(name: str) -> None:
    _, own = simulate_events(name)
    whole = pairs(find(1, own))
    for number, what in product(range(len(whole)), LAUNCH_OR_EXECUTION):
        lost = [(kind, number) for kind in what]
        assert pairs(find(1, lose(own, lost))) == expect(whole, lost), lost


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_launch_and_the_execution_of_another_are_not_taken_for_a_pair(name: str) -> None:
    _, own = simulate_events(name)
    whole, per_step = pairs(find(1, own)), len(SCENARIOS[name])
    for launch, execution in product(range(0, len(whole), 3), range(1, len(whole), 3)):
        lost = [(LAUNCH, launch), (EXECUTION, execution)]
        if name.startswith("sizes that differ") or launch // per_step != execution // per_step:
            assert pairs(find(1, lose(own, lost))) == expect(whole, lost), lost


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_other_ranks_see_the_same_collectives_and_clocks(name: str) -> None:
    first, own = simulate_events(name)
    reference = find(0, first)
    whole = match_collectives([reference, find(1, own)], 2)
    for number, what in product(range(0, len(whole), 3), LAUNCH_OR_EXECUTION):
        left = match_collectives([reference, find(1, lose(own, [(kind, number) for kind in what]))], 2)
        for a, b in zip(whole, left, strict=True):
            is_lost = a is whole[number] and EXECUTION in what
            assert [m.start_ns for m in b.members] == [m.start_ns for m in a.members][: 1 if is_lost else 2]
            assert b.transfer_ns == a.transfer_ns or is_lost
        own_clock = [match.offset_of[1] for match in chain(whole, left) if 1 in match.offset_of]
        assert max(own_clock) - min(own_clock) < 1_000
