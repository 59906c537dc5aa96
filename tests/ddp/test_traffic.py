"""What either wrapper sends, in which order, counted on two gloo ranks."""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from advisor.schema import marks
from tests.ddp.collectives import recorded
from tests.ddp.parity import spread
from tests.gloo_pair import CaseError, GlooPair
from workloads.ddp import BucketedDDP

WRAPPERS = (BucketedDDP, DistributedDataParallel)
Wrapper = type[BucketedDDP] | type[DistributedDataParallel]
LAYER = 512 * 512 + 512


def base_model() -> nn.Module:
    """Eight layers of 262656 elements, 8.40 MB."""
    return nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(512, 512), nn.ReLU())))


def sent_in_steps(wrapper: Wrapper, model: nn.Module, settings: dict[str, Any], x: Tensor, steps: int = 4) -> Any:
    ddp = wrapper(model, **settings)
    sent_by_step: list[list[int]] = []
    for _ in range(steps):
        with recorded() as sent:
            ddp(x).sum().backward()
        sent_by_step.append(sent.all_reduces)
    return sent_by_step


def train_base_model(wrapper: Wrapper, settings: dict[str, Any]) -> Any:
    return sent_in_steps(wrapper, base_model(), settings, torch.randn(16, 512))


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize(
    ("cap", "steady"),
    [(None, [LAYER, 7 * LAYER]), (25, [8 * LAYER]), (1, [LAYER] * 8)],
)
def test_step_0_is_one_all_reduce_then_the_caps_hold(
    gloo_pair: GlooPair, wrapper: Wrapper, cap: float | None, steady: list[int]
) -> None:
    assert [LAYER, 7 * LAYER, 8 * LAYER] == [262656, 1838592, 2101248]
    for steps in gloo_pair.run(train_base_model, wrapper, {"bucket_cap_mb": cap}):
        assert steps[0] == [8 * LAYER]
        assert [sorted(step) for step in steps[1:]] == [steady] * 3


def accumulate(wrapper: Wrapper, silent: str) -> int:
    ddp = wrapper(base_model(), bucket_cap_mb=2)
    x = torch.randn(16, 512)
    ddp(x).sum().backward()
    with recorded() as sent:
        for micro_step in range(4):
            with ExitStack() as stack:
                if silent == "forward and backward" and micro_step < 3:
                    stack.enter_context(ddp.no_sync())
                output = ddp(x).sum()
                if silent == "backward" and micro_step < 3:
                    stack.enter_context(ddp.no_sync())
                output.backward()
    return len(sent.all_reduces)


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize(("silent", "expected"), [("nothing", 16), ("backward", 16), ("forward and backward", 4)])
def test_no_sync_is_decided_at_forward(gloo_pair: GlooPair, wrapper: Wrapper, silent: str, expected: int) -> None:
    assert gloo_pair.run(accumulate, wrapper, silent) == [expected] * 2


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_finding_unused_parameters_never_rebuilds_and_sends_a_mark(gloo_pair: GlooPair, wrapper: Wrapper) -> None:
    settings = {"bucket_cap_mb": 2, "find_unused_parameters": True}
    for steps in gloo_pair.run(train_base_model, wrapper, settings):
        for step in steps:
            assert step.count(16) == 1
            # Caps count from the first layer: pairs of layers, and the odd bias and layer at the ends.
            assert sorted(size for size in step if size != 16) == sorted(
                [512, 2 * LAYER, 2 * LAYER, 2 * LAYER, 2 * LAYER - 512]
            )


class TiedHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8000, 128)
        self.layers = nn.Sequential(*(nn.Linear(128, 128) for _ in range(6)))
        self.head = nn.Linear(128, 8000, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        output: Tensor = self.head(self.layers(self.embedding(tokens)))
        return output


def train_tied(wrapper: Wrapper) -> Any:
    return sent_in_steps(wrapper, TiedHead(), {"bucket_cap_mb": 1}, torch.arange(16))


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_tied_embedding_makes_an_indivisible_tail(gloo_pair: GlooPair, wrapper: Wrapper) -> None:
    num_elements = 8000 * 128 + 6 * (128 * 128 + 128)
    assert round(4 * num_elements / 1e6, 2) == 4.49
    for steps in gloo_pair.run(train_tied, wrapper):
        assert steps == [[num_elements]] * 4


def forward_batch_norms(wrapper: Wrapper, setting: dict[str, bool]) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        ddp = wrapper(nn.Sequential(*(nn.BatchNorm1d(64) for _ in range(20))), **setting)
    with recorded() as sent:
        for _ in range(4):
            ddp(torch.randn(8, 64))
    return len(sent.broadcasts)


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("argument", ["forward_sync_buffers", "broadcast_buffers"])
@pytest.mark.parametrize(("is_on", "expected"), [(True, 8), (False, 0)])
def test_buffers_are_broadcast_before_each_forward(
    gloo_pair: GlooPair, wrapper: Wrapper, argument: str, is_on: bool, expected: int
) -> None:
    # The running statistics in one message, the integer counters in another.
    assert gloo_pair.run(forward_batch_norms, wrapper, {argument: is_on}) == [expected] * 2


def buffers_after(setting: dict[str, bool]) -> tuple[float, list[str]]:
    norm = nn.BatchNorm1d(4)
    norm.running_mean.fill_(dist.get_rank() + 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        BucketedDDP(norm, **setting)
    return norm.running_mean[0].item(), [warning.category.__name__ for warning in caught]


@pytest.mark.parametrize(
    ("setting", "of_rank_1", "told"),
    [
        ({}, 1, []),
        ({"forward_sync_buffers": False}, 1, []),
        ({"broadcast_buffers": False}, 2, ["FutureWarning"]),
        ({"init_sync": False}, 2, []),
    ],
)
def test_buffers_start_equal_unless_told_otherwise(
    gloo_pair: GlooPair, setting: dict[str, bool], of_rank_1: float, told: list[str]
) -> None:
    assert gloo_pair.run(buffers_after, setting) == [(1, told), (of_rank_1, told)]


def start_static_graph_silently(wrapper: Wrapper) -> str:
    ddp = wrapper(nn.Linear(4, 4), static_graph=True)
    try:
        with ddp.no_sync():
            ddp(torch.randn(2, 4)).sum().backward()
    except RuntimeError as error:
        return str(error)
    return ""


def test_a_static_graph_that_starts_silently_fails_only_under_torchs_wrapper(gloo_pair: GlooPair) -> None:
    assert gloo_pair.run(start_static_graph_silently, BucketedDDP) == ["", ""]
    assert all(
        "INTERNAL ASSERT" in told for told in gloo_pair.run(start_static_graph_silently, DistributedDataParallel)
    )


def train_with_torchs_powersgd() -> None:
    ddp = DistributedDataParallel(base_model(), bucket_cap_mb=2)
    state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
    ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    for _ in range(40):  # which of the ranks' collectives meet is a race: on a busy machine four steps may end well
        ddp(torch.randn(16, 512)).sum().backward()


def test_torchs_powersgd_hangs_on_gloo_and_is_stopped(gloo_pair: GlooPair) -> None:
    with pytest.raises(CaseError):
        gloo_pair.run(train_with_torchs_powersgd, timeout_s=8)


def train_unevenly(wrapper: Wrapper, settings: dict[str, Any], through: str) -> tuple[Any, list[int], float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    average_over_all = settings.pop("divide_by_initial_world_size", True)
    ddp = wrapper(model, **settings)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    batches = torch.randn(4 - 2 * dist.get_rank(), 6, 8)
    context = ddp.join(average_over_all) if through == "method" else Join([ddp])
    with recorded() as sent, context:
        for batch in batches:
            optimizer.zero_grad()
            ddp(batch).square().sum().backward()
            optimizer.step()
    parameters = [p.tolist() for p in ddp.parameters()]
    return parameters, sent.all_reduces, spread(ddp)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"bucket_cap_mb": 0.0001},
        {"divide_by_initial_world_size": False},
        {"find_unused_parameters": True},
        {"gradient_as_bucket_view": True, "forward_sync_buffers": False},
    ],
)
def test_uneven_inputs(gloo_pair: GlooPair, settings: dict[str, Any]) -> None:
    for through in ("method", "Join") if not settings else ("method",):
        ours = gloo_pair.run(train_unevenly, BucketedDDP, settings, through)
        theirs = gloo_pair.run(train_unevenly, DistributedDataParallel, settings, through)
        for (our_parameters, our_sizes, apart), (their_parameters, their_sizes, _) in zip(ours, theirs, strict=True):
            assert apart == 0
            for p, q in zip(our_parameters, their_parameters, strict=True):
                torch.testing.assert_close(torch.tensor(p), torch.tensor(q), rtol=0, atol=1e-6)
            assert sorted(our_sizes) == sorted(their_sizes)
            assert our_sizes.count(1) >= 4 + 5


def marks_of_a_step(record_gradient_marks: bool) -> list[str]:
    ddp = BucketedDDP(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)), bucket_cap_mb_list=[0])
    ddp.record_gradient_marks = record_gradient_marks
    for _ in range(2):
        with recorded() as sent:
            ddp(torch.ones(1, 2)).sum().backward()
    return [name for name in sent.events if name.startswith(("bucketed_ddp", marks.FORWARD))]


def test_marks_tell_the_course_of_a_step(gloo_pair: GlooPair) -> None:
    names, _ = gloo_pair.run(marks_of_a_step, True)
    last_layer = names[: names.index("bucketed_ddp::bucket_ready#1#12")]
    assert last_layer == [
        "BucketedDDP.forward",
        "bucketed_ddp::gradient_ready#3",
        "bucketed_ddp::bucket_ready#0#4",
        "bucketed_ddp::bucket_launch#0",
        "bucketed_ddp::gradient_ready#2",
    ]
    end = [f"bucketed_ddp::{what}#{bucket}" for bucket in range(4) for what in ("bucket_wait", "copy_back")]
    assert names[-8:] == end
    assert [name for name in names if "gradient_ready" not in name] == gloo_pair.run(marks_of_a_step, False)[0]


def layouts() -> tuple[list[list[int]], list[list[int]], list[int]]:
    ddp = BucketedDDP(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)), bucket_cap_mb=0)
    for _ in range(2):
        ddp(torch.ones(1, 2)).sum().backward()
    return ddp.initial_bucket_layout(), ddp.bucket_layout(), ddp.ready_order()


def test_layouts_are_in_launch_order(gloo_pair: GlooPair) -> None:
    assert gloo_pair.run(layouts)[0] == ([[0, 1, 2, 3]], [[3], [2], [1], [0]], [3, 2, 1, 0])
