"""A measured comparison of settings: predictions frozen first, arms in turns, intervals, and ties called ties."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from advisor.errors import InputError, RunError, UsageError
from advisor.schema import DDPConfig, Estimate, Struct, Sweep, SweepArm
from advisor.statistics import block_estimate, is_tie, noise_floor, paired_ratio, tie_fraction
from workloads.job import check_spec
from workloads.processes import OnProgress, launch
from workloads.requests import Arm, SweepRequest, silence_limit_s
from workloads.sweep_store import SweepStore

START_AND_STOP_S = 180.0
"""What a launch may take beyond its budget: starting, and the rounds that are measured whatever the budget says."""
REFERENCE, AGAIN = 0, 1
"""Positions of today's setting and of its double, which gives the noise floor."""


class MeasuredArm(Struct, frozen=True, kw_only=True):
    """What was measured of one arm: its counted steps by round, each on its slowest rank, in ns."""

    name: str
    config: DDPConfig
    predicted_ns: Estimate | None
    blocks: dict[int, tuple[int, ...]]
    failure: str = ""
    """Why it could not be measured; empty when it could."""


def with_double(arms: Sequence[Arm]) -> tuple[Arm, ...]:
    """The arms with the first one repeated as an A/A arm."""
    first, *others = arms
    return (first, msgspec.structs.replace(first, name=f"{first.name} (again)"), *others)


def measure_arms(request: SweepRequest, on_progress: OnProgress | None = None) -> list[MeasuredArm]:
    """Measures every arm against the first one and an exact double of it, in interleaved rounds.

    The predictions are written with their hash before anything runs; each visit is written as it ends, so calling this
    again with the same request adds rounds. An arm whose processes fail or hang is left out and the others go on.

    Args:
        request: The job, the arms (the first is the reference) and the budget.
        on_progress: Called with seconds used, seconds of the budget, and what is happening.

    Returns:
        The reference, its double, then the other arms.

    Raises:
        UsageError: The arms differ in world size or backend, or two have the same name.
        InputError: The database is not usable.
        RunError: The reference itself, or starting the processes, failed.
    """
    check_spec(request.job)
    _check_arms(request.arms)
    request = msgspec.structs.replace(
        request, arms=with_double(request.arms), database=str(Path(request.database).absolute())
    )
    deadline = time.monotonic() + request.budget_s
    with SweepStore.freeze(Path(request.database), request.arms, request.steps_per_visit) as store:
        store.reset_states()
    while True:
        remaining_s = max(0.0, deadline - time.monotonic())
        try:
            launch(
                msgspec.structs.replace(request, budget_s=remaining_s),
                on_progress,
                timeout_s=remaining_s + START_AND_STOP_S + len(request.arms) * silence_limit_s(request),
            )
            return read_measured(Path(request.database))
        except (RunError, UsageError, InputError) as error:
            _blame_an_arm(Path(request.database), error)


def _check_arms(arms: Sequence[Arm]) -> None:
    if len({(arm.config.world_size, arm.config.backend) for arm in arms}) != 1:
        raise UsageError("A sweep needs at least one arm, and all arms with the same world size and backend.")
    names = [arm.name for arm in arms]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UsageError(f"Two arms of the sweep are called {twice[0]!r}: give each its own name.")


def _blame_an_arm(database: Path, error: Exception) -> None:
    """Marks the arm that was running as failed; raises the error again where none was, or none is left to compare."""
    with SweepStore(database) as store:
        running = store.positions("warming", "measuring")
        if not running or running[0] in (REFERENCE, AGAIN):
            raise error
        store.set_state(running[0], "failed", str(error))


def read_measured(database: Path) -> list[MeasuredArm]:
    """What a sweep's file holds of every arm."""
    with SweepStore(database) as store:
        return [
            MeasuredArm(
                name=arm.name,
                config=arm.config,
                predicted_ns=arm.predicted_ns,
                blocks={index: tuple(block) for index, block in store.blocks(position).items()},
                failure=store.message(position),
            )
            for position, arm in enumerate(store.arms())
        ]


def summarise(database: Path) -> Sweep:
    """Turns a sweep's file into its answer.

    Raises:
        InputError: There is no such file, or nothing was measured yet.
    """
    if not database.is_file():
        raise InputError(f"There is no sweep at {database}: check the path.")
    with SweepStore(database) as store:
        digest, steps_per_visit = store.predictions_sha256(), store.steps_per_visit()
    measured = read_measured(database)
    rounds = complete_rounds(measured)
    if not rounds:
        raise InputError(f"{database} holds no complete round yet: measure longer.")
    floor = noise_floor(_blocks(measured[REFERENCE], rounds), _blocks(measured[AGAIN], rounds))
    return Sweep(
        arms=tuple(compare_arm(arm, measured[REFERENCE], rounds, floor) for arm in measured),
        noise_floor_fraction=floor,
        tie_fraction=tie_fraction(floor),
        num_blocks=len(rounds),
        steps_per_block=steps_per_visit - 1,
        predictions_sha256=digest,
    )


def complete_rounds(measured: Sequence[MeasuredArm]) -> list[int]:
    """The rounds in which every arm that did not fail was visited."""
    rounds = [set(arm.blocks) for arm in measured if not arm.failure]
    return sorted(set.intersection(*rounds)) if rounds else []


def _blocks(arm: MeasuredArm, rounds: Sequence[int]) -> list[tuple[int, ...]]:
    return [arm.blocks[index] for index in rounds]


def compare_arm(arm: MeasuredArm, reference: MeasuredArm, rounds: Sequence[int], floor: float) -> SweepArm:
    """One arm beside the reference: its step (20 % trimmed mean), the ratio over paired rounds, and the word for it."""
    if arm.failure:
        return SweepArm(
            name=arm.name,
            config=arm.config,
            predicted_ns=arm.predicted_ns,
            step_ns=None,
            ratio=None,
            num_steps=0,
            outcome="failed",
            message=arm.failure,
        )
    blocks = _blocks(arm, rounds)
    ratio = paired_ratio(blocks, _blocks(reference, rounds))
    tie = is_tie(ratio, floor)
    return SweepArm(
        name=arm.name,
        config=arm.config,
        predicted_ns=arm.predicted_ns,
        step_ns=block_estimate(blocks),
        ratio=ratio,
        num_steps=sum(map(len, blocks)),
        outcome="reference" if arm is reference else "tie" if tie else "faster" if ratio.value < 1 else "slower",
    )
