"""A profile of PowerSGD itself: what its hook computed and waited for; times of the traces in microseconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from advisor.calibrate import Calibrated, calibrate
from advisor.intervals import total
from advisor.observation import RunObservation
from advisor.powersgd import OTHERS_WEIGHT
from advisor.profiled_config import identify_config
from advisor.replay import Job, hides_gradients
from advisor.schema import StepSummary
from advisor.step_profile import find_compression
from advisor.stragglers import find_waiting
from advisor.summaries import summarize_steps
from tests.job_builders import build_comm_model, build_config
from tests.trace_builders import Front, RankTrace, lay_out

STEPS = (3, 4)
STEP_US = 20_000
P, Q, OTHERS = 200, 100, 100
"""Elements of a matrix of 100 × 50 under rank 2, and of its bias."""


def write_gradient(trace: RankTrace, span: tuple[float, float], shape: Sequence[int]) -> None:
    shapes = {"Input Dims": [list(shape)], "Input type": ["float"]}
    trace.node(*span, "torch::autograd::AccumulateGrad")
    trace.add("cpu_op", "torch::autograd::AccumulateGrad", span[0], span[0] + 1, args=shapes)
    trace.operator("torch::distributed::reducer::copy_", span[0] + 10, span[0] + 100)


def trace(rank: int, *, product: str = "aten::mm", p_elements: int = P) -> RankTrace:
    """Backward from 5 ms: a bias at 7.1, then a matrix whose hook runs from 9.1 to 12 ms and sends P, the bias and Q.

    It computes from 9.1 to 9.5, 10.2 to 11 and 11.5 to 12 ms, and waits between.
    """
    one = RankTrace(rank)
    for place, number in enumerate(STEPS):
        at = place * STEP_US
        one.step(number, at, at + STEP_US)
        one.forward(at + 1_000, at + 5_000)
        one.node(at + 5_000, at + 7_000)
        write_gradient(one, (at + 7_000, at + 7_100), [100])
        one.node(at + 7_100, at + 9_000)
        write_gradient(one, (at + 9_000, at + 12_000), [100, 50])
        for name, begin, end in (
            ("aten::add_", 9_100, 9_300),
            (product, 9_300, 9_500),
            ("aten::linalg_qr", 10_200, 10_700),
            (product, 10_700, 11_000),
            (product, 11_500, 12_000),
        ):
            one.operator(name, at + begin, at + end)
        one.gloo(at + 9_500, at + 9_502, at + 10_000, p_elements)
        one.gloo(at + 9_501, at + 9_502, at + 10_200, OTHERS, worker=1)
        one.gloo(at + 11_000, at + 11_001, at + 11_500, Q)
        one.copy_back(at + 12_100, at + 12_200)
        one.optimizer(at + 15_000, at + 16_000)
    return one


def calibrate_front(front: Front) -> Calibrated:
    return calibrate(front.observations, front.schedules, None, "gloo", ())


def test_a_hook_computes_or_waits_from_the_last_copy_into_its_bucket_to_the_end_of_its_node() -> None:
    front = lay_out(trace(0), trace(1))
    exchange = front.schedules[0].exchange
    assert exchange.hook is not None
    np.testing.assert_array_equal(exchange.hook.spans, [[9_100_000, 12_000_000]])
    assert total(exchange.hook.computing) == 1_700_000
    assert total(exchange.hook.waiting) == 698_000 + 499_000
    assert exchange.blocking_ns == total(exchange.hook.waiting)
    assert find_compression(exchange) == 2


def test_its_gradients_are_known_though_only_thin_matrices_were_sent() -> None:
    """The matrix is ready at 4.1 ms, when its hook begins, and backward ends there."""
    profile = calibrate_front(lay_out(trace(0), trace(1))).profile
    assert profile is not None
    assert profile.sizes_known
    assert profile.shapes == ((100,), (100, 50))
    slowest = profile.slowest
    assert [gradient.num_bytes for gradient in slowest.gradients] == [400, 20_000]
    assert [gradient.ready_device_ns for gradient in slowest.gradients] == [2_100_000, 4_100_000]
    assert slowest.backward_ns == 4_100_000


def test_its_computation_is_measured_as_the_slowest_rank_takes_it() -> None:
    """1.7 ms for 20 000 bytes of a matrix and 400 that stay as they are; the other ranks wait for the slowest."""
    calibration = calibrate_front(lay_out(trace(0), trace(1))).calibration
    cost = calibration.hook_ns_per_byte["powersgd:2"]
    assert cost.basis == "measured"
    assert cost.value == pytest.approx(1_700_000 / (20_000 + OTHERS_WEIGHT * 400))
    assert calibration.hook_ns_per_matrix["powersgd:2"].value == 0
    assert calibration.hook_ns_per_byte["powersgd"].basis == "extrapolated"
    assert calibration.copy_out_ns_per_byte.value == pytest.approx(100_000 / 20_400)


def test_the_phases_of_a_step_still_add_up_to_it() -> None:
    front = lay_out(trace(0), trace(1))
    rows = summarize_steps(front.observations, front.schedules, find_waiting(front.observations, front.matched))
    row: StepSummary = rows[0]
    assert row.blocking_ns == 1_197_000
    parts = (row.data_ns, row.forward_ns, row.backward_ns, row.blocking_ns, row.optimizer_ns, row.other_ns)
    assert sum(parts) == row.duration_ns == STEP_US * 1000


def test_the_hook_is_named_without_a_manifest() -> None:
    front = lay_out(trace(0), trace(1))
    run = RunObservation(source="run", ranks=tuple(front.observations), manifest=None, notes=())
    config = identify_config(run, front.schedules, calibrate_front(front).profile)
    assert config is not None
    assert (config.comm_hook, config.bucket_cap_mb, config.bucket_cap_mb_list) == ("powersgd:2", None, None)


def test_a_hook_that_multiplies_nothing_is_no_such_hook() -> None:
    front = lay_out(trace(0, product="aten::mul"), trace(1, product="aten::mul"))
    assert all(schedule.exchange.hook is None for schedule in front.schedules)


def test_what_was_sent_must_fit_the_gradients() -> None:
    """Half of P: nobody knows what that hook does, so that no other setting is predicted from it."""
    front = lay_out(trace(0, p_elements=P // 2), trace(1, p_elements=P // 2))
    assert find_compression(front.schedules[0].exchange) is None
    calibrated = calibrate_front(front)
    assert calibrated.profile is not None
    assert not calibrated.profile.sizes_known
    today = build_config(comm_hook="powersgd:2")
    job = Job(calibrated.profile, calibrated.calibration, build_comm_model(0, 1), today)
    assert hides_gradients(job)
    assert not hides_gradients(replace(job, today=build_config()))
