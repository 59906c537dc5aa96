"""Which collective a probe measures next: a plan with visits made up here."""

from __future__ import annotations

import pytest

from workloads.probe_plan import (
    KIB,
    LEVELS,
    MOST_VISITS,
    Condition,
    Plan,
    Visit,
    find_input_bytes,
    rank_conditions,
)
from workloads.requests import ProbedKind

MIB = KIB**2
SIZES = [KIB * 2**power for level in LEVELS for power in level]
FLOAT32: dict[ProbedKind, list[str]] = {"all_reduce": ["float32"]}


def visit(*repetitions_ns: int, seconds: float = 0.1, slowdown: float | None = None) -> Visit:
    return Visit(repetitions_ns or (100, 100, 100), slowdown, seconds)


def play(plan: Plan, budget_s: float, vague: Condition | None = None) -> list[Condition]:
    """Follows the plan; every visit takes 0.1 s and is exact, but those of `vague` scatter."""
    order = []
    used_s = 0.0
    while (condition := plan.choose(budget_s - used_s)) is not None:
        num_visits = len(plan.visits.get(condition, ()))
        scatter = (100 + 40 * (num_visits % 2), 100, 200) if condition == vague else (100, 100, 100)
        plan.add(condition, visit(*scatter))
        order.append(condition)
        used_s += 0.1
    return order


def test_the_ladder_goes_from_a_kibibyte_to_64_mebibytes() -> None:
    assert sorted(SIZES) == [KIB * 2**power for power in range(17)]
    assert max(SIZES) == 64 * MIB


def test_every_condition_has_one_turn() -> None:
    turns = rank_conditions({"all_reduce": ["float32", "bfloat16"]}, 2)
    assert len(turns) == 17 * 2 * 2 * 2
    assert list(turns.values()) == sorted(turns.values())


def test_a_short_budget_covers_the_ladder_coarsely_before_it_goes_into_detail() -> None:
    order = play(Plan(rank_conditions({"all_reduce": ["float32", "bfloat16"]}, 2)), 3.0)
    assert order[0] == Condition("all_reduce", "float32", 256 * KIB)
    alone = {c.num_bytes for c in order if c == Condition("all_reduce", "float32", c.num_bytes)}
    assert {16 * KIB, 256 * KIB, 4 * MIB} <= alone
    assert {c.in_flight for c in order} == {1, 2}
    assert {c.under_compute for c in order} == {False, True}


def test_with_time_everything_is_visited_twice_and_then_what_is_vague() -> None:
    vague = Condition("all_reduce", "float32", 4 * MIB, 2)
    plan = Plan(rank_conditions(FLOAT32, 2))
    order = play(plan, 1000.0, vague)
    assert {len(visits) for condition, visits in plan.visits.items() if condition != vague} == {2}
    assert len(plan.visits[vague]) == MOST_VISITS
    assert order[-1] == vague
    assert len(plan.visits) == 68


def test_what_would_not_fit_is_left_out_and_told() -> None:
    plan = Plan(rank_conditions(FLOAT32, 2))
    plan.add(Condition("all_reduce", "float32", 256 * KIB), visit(seconds=1.0))
    assert plan.expect_seconds(Condition("all_reduce", "float32", KIB)) == 1.0
    assert plan.expect_seconds(Condition("all_reduce", "float32", 4 * MIB)) == 16.0
    assert plan.choose(0.5) is None
    left, rough = plan.list_left_out()
    assert left == (
        "Left out for lack of time, of 17 sizes of all_reduce of float32: alone 16; two in flight 17; "
        "under compute 17; two in flight, under compute 17."
    )
    assert rough.startswith("1 of 1 measured conditions are known less closely than 5% either way")
    assert "all_reduce of 256 KiB of float32, alone (from one visit only)" in rough


def test_kinds_take_turns_and_what_was_not_begun_is_told() -> None:
    """Room for five visits: each kind its middle size, and then in the same order what comes next."""
    plan = Plan(rank_conditions({"broadcast": ["float32"], "all_gather": ["float32", "float16"]}, 4))
    order = play(plan, 0.55)
    assert [(c.kind, c.num_bytes, c.manner) for c in order] == [
        ("broadcast", 256 * KIB, "alone"),
        ("all_gather", 64 * KIB, "alone"),
        ("broadcast", 256 * KIB, "under compute"),
        ("all_gather", 64 * KIB, "under compute"),
        ("broadcast", 256 * KIB, "two in flight"),
    ]
    unseen, broadcast, all_gather, _ = plan.list_left_out()
    assert unseen == "Left out for lack of time: all_gather of float16."
    assert broadcast.startswith("Left out for lack of time, of 17 sizes of broadcast of float32: alone 16; two")
    assert all_gather.startswith("Left out for lack of time, of 17 sizes of all_gather of float32: alone 16; two")
    assert {point.kind for point in plan.list_points()} == {"broadcast", "all_gather"}


def test_the_vague_condition_of_any_kind_gets_the_time_that_is_left() -> None:
    vague = Condition("broadcast", "float32", 4 * MIB)
    plan = Plan(rank_conditions({"all_reduce": ["float32"], "broadcast": ["float32"]}, 2))
    play(plan, 1000.0, vague)
    assert {len(visits) for condition, visits in plan.visits.items() if condition != vague} == {2}
    assert len(plan.visits[vague]) == MOST_VISITS


def test_what_a_visit_takes_is_expected_from_the_same_kind() -> None:
    plan = Plan(rank_conditions({"all_reduce": ["float32"], "broadcast": ["float32"]}, 2))
    plan.add(Condition("all_reduce", "float32", MIB), visit(seconds=5.0))
    assert plan.expect_seconds(Condition("broadcast", "float32", MIB)) == 5.0
    plan.add(Condition("broadcast", "float32", 2 * MIB), visit(seconds=1.0))
    assert plan.expect_seconds(Condition("broadcast", "float32", MIB)) == 1.0


def test_a_backend_that_runs_one_after_the_other_starts_no_two() -> None:
    turns = rank_conditions(FLOAT32, 2, most_in_flight=1)
    assert len(turns) == 17 * 2
    assert {condition.in_flight for condition in turns} == {1}


@pytest.mark.parametrize(
    ("kind", "world_size", "num_bytes"),
    [
        ("all_reduce", 3, KIB),
        ("broadcast", 3, KIB),
        ("all_gather", 4, 256),
        ("all_gather", 3, 340),
        ("reduce_scatter", 4, KIB),
        ("reduce_scatter", 3, 1020),
        ("reduce_scatter", 1000, 4000),
    ],
)
def test_sizes_count_the_whole_array_and_bytes_the_input(kind: ProbedKind, world_size: int, num_bytes: int) -> None:
    assert find_input_bytes(kind, KIB, world_size) == num_bytes


def test_a_complete_plan_left_nothing_out() -> None:
    plan = Plan(rank_conditions(FLOAT32, 2))
    play(plan, 1000.0)
    assert plan.list_left_out() == ()


def test_points_hold_every_visit() -> None:
    plan = Plan(rank_conditions(FLOAT32, 2))
    condition = Condition("all_reduce", "float32", MIB, under_compute=True)
    plan.add(condition, visit(3, 4, 5, slowdown=1.5))
    plan.add(condition, visit(6, 7, 8))
    (point,) = plan.list_points()
    assert (point.kind, point.num_bytes, point.in_flight, point.under_compute) == ("all_reduce", MIB, 1, True)
    assert point.rounds_ns == ((3, 4, 5), (6, 7, 8))
    assert point.compute_slowdowns == (1.5,)


@pytest.mark.parametrize(
    ("condition", "text"),
    [
        (Condition("all_reduce", "float32", 64 * KIB), "all_reduce of 64 KiB of float32, alone"),
        (Condition("all_gather", "float32", 340), "all_gather of 0.332 KiB of float32, alone"),
        (
            Condition("all_reduce", "bfloat16", 2 * MIB, 2, True),
            "all_reduce of 2 MiB of bfloat16, two in flight, under compute",
        ),
    ],
)
def test_a_condition_is_named_in_words(condition: Condition, text: str) -> None:
    assert str(condition) == text
