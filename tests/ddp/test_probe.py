"""What a rank of a probe measures, on two gloo ranks: every collective, its sizes, and the load beside it."""

from __future__ import annotations

import time
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from advisor.errors import UsageError
from tests.gloo_pair import GlooPair
from workloads import probe_collectives, probe_load
from workloads.place import Place, process_group
from workloads.probe import REPETITIONS, visit
from workloads.probe_collectives import DTYPES, build_operands, choose_dtypes
from workloads.probe_load import ComputeLoop
from workloads.probe_plan import Condition, Visit
from workloads.requests import PROBED_KINDS, ProbedKind

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")),
]


def here(device: str = "cpu") -> Place:
    return Place(dist.get_rank(), dist.get_world_size(), torch.device(device), "gloo")


def ask_for_dtypes() -> tuple[dict[ProbedKind, list[str]], list[str]]:
    return choose_dtypes(PROBED_KINDS, here())


def ask_for_a_dtype_that_gloo_lacks() -> tuple[dict[ProbedKind, list[str]], list[str]]:
    with patch.object(probe_collectives, "DTYPES", ("float32", "float8_e5m2")):
        return choose_dtypes(("all_reduce",), here())


def visit_once(kind: ProbedKind, under_compute: bool, device: str) -> Visit:
    place = here(device)
    condition = Condition(kind, "float32", 2**16, in_flight=2, under_compute=under_compute)
    return visit(condition, ComputeLoop(place.device), place)


def list_sizes() -> dict[ProbedKind, tuple[int, int]]:
    place = here()
    operands = {kind: build_operands(kind, "float16", 1024, place) for kind in PROBED_KINDS}
    return {kind: (each.whole.nbytes, each.part.nbytes) for kind, each in operands.items()}


def test_gloo_takes_every_collective_and_dtype(gloo_pair: GlooPair) -> None:
    for taken, refused in gloo_pair.run(ask_for_dtypes):
        assert taken == {kind: list(DTYPES) for kind in PROBED_KINDS}
        assert refused == []


def test_what_a_backend_refuses_is_told_and_the_rest_goes_on(gloo_pair: GlooPair) -> None:
    for taken, refused in gloo_pair.run(ask_for_a_dtype_that_gloo_lacks):
        assert taken == {"all_reduce": ["float32"]}
        assert refused == ["all_reduce of float8_e5m2 not measured: gloo refuses it."]


@pytest.mark.parametrize("kind", PROBED_KINDS)
@pytest.mark.parametrize("under_compute", [False, True])
@pytest.mark.parametrize("device", DEVICES)
def test_a_visit_times_any_collective_alike_on_all_ranks(
    gloo_pair: GlooPair, kind: ProbedKind, under_compute: bool, device: str
) -> None:
    one, other = gloo_pair.run(visit_once, kind, under_compute, device)
    assert one.repetitions_ns == other.repetitions_ns
    assert len(one.repetitions_ns) == REPETITIONS
    assert min(one.repetitions_ns) > 0
    assert one.compute_slowdown == other.compute_slowdown
    assert under_compute or one.compute_slowdown is None


def test_bytes_are_those_of_the_input(gloo_pair: GlooPair) -> None:
    """1 KiB: to be reduced or broadcast whole, gathered to 2 KiB, or scattered in halves."""
    for sizes in gloo_pair.run(list_sizes):
        assert sizes == {
            "all_reduce": (1024, 0),
            "broadcast": (1024, 0),
            "all_gather": (2048, 1024),
            "reduce_scatter": (1024, 512),
        }


def test_a_load_that_fails_is_told_instead_of_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*matrices: torch.Tensor, out: torch.Tensor) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(torch, "mm", fail)
    with pytest.raises(RuntimeError, match="out of memory"), ComputeLoop(torch.device("cpu")).running():
        pass


@pytest.mark.parametrize("device", DEVICES)
def test_a_load_lasts_until_the_block_ends(device: str) -> None:
    load = ComputeLoop(torch.device(device))
    with load.running() as clean_ns:
        assert clean_ns > 0
        num_ended = len(load._ends_ns)
        while len(load._ends_ns) < num_ended + 3:
            time.sleep(0.001)
    num_ended = len(load._ends_ns)
    time.sleep(0.01)
    assert len(load._ends_ns) == num_ended
    assert load._ends_ns == sorted(load._ends_ns)


def test_a_slow_down_compares_the_pace_before_with_that_beside() -> None:
    """Products end every 10 ns until 100 and every 20 ns after it; four in 80 ns, where eight were due."""
    load = ComputeLoop(torch.device("cpu"))
    load._ends_ns = [*range(0, 100, 10), *range(100, 400, 20)]
    assert load.measure_slowdown([(120, 160), (240, 280)], 10.0) == pytest.approx(2.0)
    assert load.measure_slowdown([(120, 120 + 10 * probe_load.FEWEST_UNITS - 1)], 10.0) == 0.0


def test_nccl_without_a_gpu_for_each_rank_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with (
        pytest.raises(UsageError, match="NCCL needs a GPU for each of 2 ranks, and here are 1: choose fewer ranks"),
        process_group("nccl"),
    ):
        pass
