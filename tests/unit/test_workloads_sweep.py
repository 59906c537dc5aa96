from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from advisor.errors import InputError, RunError, UsageError
from advisor.schema import DDPConfig, Estimate
from workloads.job import JobSpec
from workloads.requests import Arm, SweepRequest
from workloads.sweep import _blame_an_arm, measure_arms, summarise, with_double
from workloads.sweep_store import SweepStore, hash_predictions

TODAY = DDPConfig(world_size=2, backend="gloo", wrapper="torch")
CAP_1 = DDPConfig(world_size=2, backend="gloo", wrapper="torch", bucket_cap_mb=1.0)
CAP_4 = DDPConfig(world_size=2, backend="gloo", wrapper="torch", bucket_cap_mb=4.0)
ARMS = with_double([Arm(name="today", config=TODAY), Arm(name="cap 1", config=CAP_1), Arm(name="cap 4", config=CAP_4)])


def visit(duration_ns: int) -> list[list[int]]:
    """Three steps on two ranks: the first is not counted, rank 1 is the slower one."""
    return [[9999, duration_ns - 10, duration_ns - 10], [9999, duration_ns, duration_ns]]


def fill(store: SweepStore, durations_ns: dict[int, list[int]]) -> None:
    for position, rounds in durations_ns.items():
        for index, duration_ns in enumerate(rounds):
            store.add_visit(position, index, visit(duration_ns))


def test_the_ratio_is_paired_by_round_and_a_tie_is_called_a_tie(tmp_path: Path) -> None:
    database = tmp_path / "sweep.sqlite"
    with SweepStore.freeze(database, ARMS, steps_per_visit=3) as store:
        fill(store, {0: [1000, 2000], 1: [1000, 2000], 2: [1010, 2020], 3: [800, 1600]})
    sweep = summarise(database)
    assert [arm.outcome for arm in sweep.arms] == ["reference", "tie", "tie", "faster"]
    assert sweep.arms[3].ratio == Estimate(value=0.8, low=0.8, high=0.8, basis="measured")
    assert sweep.arms[3].step_ns is not None and sweep.arms[3].step_ns.value == 1200
    assert sweep.arms[3].num_steps == 4
    assert (sweep.noise_floor_fraction, sweep.tie_fraction) == (0.0, 0.02)
    assert (sweep.num_blocks, sweep.steps_per_block) == (2, 2)
    assert sweep.predictions_sha256 == hash_predictions(ARMS)


def test_a_noisy_pair_of_equals_widens_the_tie(tmp_path: Path) -> None:
    database = tmp_path / "sweep.sqlite"
    with SweepStore.freeze(database, ARMS, steps_per_visit=3) as store:
        fill(store, {0: [1000], 1: [1100], 2: [850], 3: [700]})
    sweep = summarise(database)
    assert sweep.tie_fraction == pytest.approx(0.2)
    assert [arm.outcome for arm in sweep.arms] == ["reference", "tie", "tie", "faster"]


def test_a_failed_arm_keeps_its_reason_and_the_others_their_rounds(tmp_path: Path) -> None:
    database = tmp_path / "sweep.sqlite"
    with SweepStore.freeze(database, ARMS, steps_per_visit=3) as store:
        fill(store, {0: [1000, 1000], 1: [1000, 1000], 2: [1000], 3: [900, 900]})
        store.set_state(2, "measuring")
    _blame_an_arm(database, RuntimeError("Rank 1 failed."))
    sweep = summarise(database)
    assert [(arm.outcome, arm.message) for arm in sweep.arms][2:] == [("failed", "Rank 1 failed."), ("faster", "")]
    assert sweep.arms[2].ratio is None
    assert sweep.num_blocks == 2


def test_a_sweep_goes_on_without_the_arm_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = tmp_path / "sweep.sqlite"
    launches = []

    def fake_launch(request: SweepRequest, on_progress: object, *, timeout_s: float) -> None:
        launches.append(request)
        with SweepStore(database) as store:
            if len(launches) == 1:
                store.set_state(2, "warming")
                raise RunError("Rank 0 failed.")
            fill(store, {position: [1000] for position in store.positions("waiting")})

    monkeypatch.setattr("workloads.sweep.launch", fake_launch)
    arms = (Arm(name="today", config=TODAY), Arm(name="cap 1", config=CAP_1), Arm(name="cap 4", config=CAP_4))
    measured = measure_arms(SweepRequest(job=JobSpec(workload="mlp"), arms=arms, database=str(database)))
    assert [arm.failure for arm in measured] == ["", "", "Rank 0 failed.", ""]
    assert [arm.blocks for arm in measured] == [{0: (1000, 1000)}, {0: (1000, 1000)}, {}, {0: (1000, 1000)}]
    assert len(launches) == 2


def test_an_unfinished_round_is_left_out(tmp_path: Path) -> None:
    database = tmp_path / "sweep.sqlite"
    with SweepStore.freeze(database, ARMS, steps_per_visit=3) as store:
        fill(store, {0: [1000, 5000], 1: [1000, 5000], 2: [1000], 3: [900]})
        assert store.next_round() == 2
    assert summarise(database).num_blocks == 1


def test_nothing_measured_yet_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="There is no sweep at"):
        summarise(tmp_path / "sweep.sqlite")
    with SweepStore.freeze(tmp_path / "sweep.sqlite", ARMS, steps_per_visit=3):
        pass
    with pytest.raises(InputError, match="holds no complete round yet"):
        summarise(tmp_path / "sweep.sqlite")


@pytest.mark.parametrize("running", [[], [0], [1]])
def test_without_an_arm_to_blame_the_error_stands(tmp_path: Path, running: list[int]) -> None:
    database = tmp_path / "sweep.sqlite"
    with SweepStore.freeze(database, ARMS, steps_per_visit=3) as store:
        for position in running:
            store.set_state(position, "warming")
    with pytest.raises(RuntimeError, match="no torch"):
        _blame_an_arm(database, RuntimeError("no torch"))


def test_a_sweep_goes_on_where_it_was_and_refuses_other_predictions(tmp_path: Path) -> None:
    database = tmp_path / "sweep.sqlite"
    with SweepStore.freeze(database, ARMS, steps_per_visit=3):
        pass
    with SweepStore.freeze(database, ARMS, steps_per_visit=3) as store:
        assert store.arms() == list(ARMS)
    predicted = Arm(name="today", config=TODAY, predicted_ns=Estimate(value=1, low=1, high=1, basis="fitted"))
    with pytest.raises(InputError, match="holds a sweep of other settings or predictions"):
        SweepStore.freeze(database, with_double([predicted]), steps_per_visit=3)


def test_a_file_that_is_no_database_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "sweep.sqlite").write_text("not a database, but long enough to look like one" * 100)
    with pytest.raises(InputError, match=r"cannot be used for a sweep \(file is not a database\)"):
        SweepStore.freeze(tmp_path / "sweep.sqlite", ARMS, steps_per_visit=3)


def test_predictions_can_be_read_with_sqlite_alone(tmp_path: Path) -> None:
    database = tmp_path / "sweep.sqlite"
    with SweepStore.freeze(database, ARMS, steps_per_visit=3), closing(sqlite3.connect(database)) as connection:
        [(name,)] = connection.execute("SELECT arm ->> 'name' FROM arms WHERE position = 2")
    assert name == "cap 1"


@pytest.mark.parametrize(
    ("arms", "sentence"),
    [
        ((), "at least one arm"),
        ((Arm(name="a", config=TODAY), Arm(name="a", config=CAP_1)), "Two arms of the sweep are called 'a'"),
        (
            (
                Arm(name="a", config=TODAY),
                Arm(name="b", config=DDPConfig(world_size=3, backend="gloo", wrapper="torch")),
            ),
            "the same world size",
        ),
    ],
)
def test_arms_that_cannot_be_compared_are_refused(arms: tuple[Arm, ...], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=sentence):
        measure_arms(SweepRequest(job=JobSpec(workload="mlp"), arms=arms, database=str(tmp_path / "sweep.sqlite")))
