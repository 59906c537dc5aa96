"""Failing well: one sentence that names the parameter, the bucket or the rank, and never a hang without a time-out."""

from __future__ import annotations

import copy
import datetime
import pickle
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from advisor.errors import AdvisorError, RunError, UsageError
from tests.ddp import models
from tests.ddp.parity import inputs, loss_of
from tests.gloo_pair import GlooPair
from workloads.ddp import BucketedDDP

CAP = {"bucket_cap_mb": 0.008}


def message_of(function: Callable[[], object], kind: type[AdvisorError]) -> str:
    try:
        function()
    except kind as error:
        return str(error)
    return "nothing was raised"


def wrap_different_models(difference: str) -> str:
    rank = dist.get_rank()
    model: nn.Module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    if rank == 1:
        model = {
            "shape": nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)),
            "count": nn.Sequential(nn.Linear(4, 4)),
            "dtype": nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, dtype=torch.bfloat16)),
            "frozen": nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 4)),
        }[difference]
    return message_of(lambda: BucketedDDP(model), UsageError)


@pytest.mark.parametrize(
    ("difference", "expected"),
    [
        ("shape", "1.weight of shape [3, 4], torch.float32 and stride [4, 1] instead of 1.weight of shape [4, 4]"),
        ("count", "2 trainable parameters instead of 4"),
        ("dtype", "1.weight of shape [4, 4], torch.bfloat16"),
        ("frozen", "1.weight of shape [4, 4], torch.float32 and stride [4, 1] instead of 0.weight"),
    ],
)
def test_every_rank_learns_which_one_has_another_model(gloo_pair: GlooPair, difference: str, expected: str) -> None:
    messages = gloo_pair.run(wrap_different_models, difference)
    assert messages[0] == messages[1]
    assert messages[0].startswith("Rank 1 has another model than rank 0: ")
    assert expected in messages[0]


def miss_a_parameter(settings: dict[str, Any]) -> str:
    ours = BucketedDDP(models.NestedOutputs(), **CAP, **settings)
    if settings:
        loss_of(ours(inputs(0, 0), 0)).backward()
    output = ours(inputs(1, 0), 0)
    loss_of(output["pair"]).backward()
    return message_of(lambda: ours(inputs(2, 0), 0), RunError)


@pytest.mark.parametrize(
    ("settings", "advice"),
    [
        ({}, "let every output and parameter take part in the loss, or pass find_unused_parameters=True"),
        ({"static_graph": True}, "leave static_graph out"),
    ],
)
def test_a_parameter_that_backward_misses_is_named(gloo_pair: GlooPair, settings: dict[str, Any], advice: str) -> None:
    names = "heads.2.weight, heads.2.bias, heads.3.weight, heads.3.bias"
    for rank, message in enumerate(gloo_pair.run(miss_a_parameter, settings)):
        assert message.startswith(f"Rank {rank}: the last backward gave no gradient to {names}, so")
        assert advice in message


def mark_ready_twice() -> list[str]:
    messages: list[str] = []
    checkpointed = BucketedDDP(models.CheckpointedTwice(from_the_start=False))
    messages.append(message_of(lambda: loss_of(checkpointed(inputs(0, 0), 0)).backward(), RunError))
    two_losses = BucketedDDP(models.NestedOutputs())
    output = two_losses(inputs(0, 0), 0)
    output["pair"][0].sum().backward(retain_graph=True)
    messages.append(message_of(lambda: output["pair"][0].sum().backward(), RunError))
    not_static = BucketedDDP(models.ExpertsAlone(), static_graph=True)
    loss_of(not_static(inputs(0, 0), 0)).backward()
    messages.append(message_of(lambda: loss_of(not_static(inputs(0, 0), 1)).backward(), RunError))
    return messages


def test_a_parameter_marked_ready_twice_is_named(gloo_pair: GlooPair) -> None:
    for rank, (checkpointed, second_backward, not_static) in enumerate(gloo_pair.run(mark_ready_twice)):
        assert checkpointed.startswith(f"Rank {rank}: block.")
        assert "a second gradient before the first backward was over" in checkpointed
        assert second_backward.startswith(f"Rank {rank}: heads.0.")
        assert not_static.startswith(f"Rank {rank}: experts.1.")
        assert "not static" in not_static


def change_what_is_frozen() -> tuple[list[str], str]:
    model = models.Mlp()
    model.layers[0].requires_grad_(False)
    ours = BucketedDDP(model)
    model.layers[0].requires_grad_(True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(2):
            loss_of(ours(inputs(step, 0), 0)).backward()
    model.layers[1].requires_grad_(False)
    loss_of(ours(inputs(2, 0), 0)).backward()
    return [str(warning.message) for warning in caught], message_of(lambda: ours(inputs(3, 0), 0), RunError)


def test_unfreezing_warns_once_and_freezing_fails_at_the_next_step(gloo_pair: GlooPair) -> None:
    for told, failed in gloo_pair.run(change_what_is_frozen):
        assert len(told) == 1
        assert told[0].startswith("layers.0.weight, layers.0.bias was unfrozen after wrapping")
        assert "layers.1.weight, layers.1.bias was frozen after wrapping" in failed


def run_a_backward_too_many() -> list[str]:
    ours = BucketedDDP(models.Mlp())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loss = loss_of(ours(inputs(0, 0), 0))
        loss.backward(retain_graph=True)
        loss.backward()
        with ours.no_sync():
            loss_of(ours(inputs(1, 0), 0)).backward()
        loss_of(ours(inputs(2, 0), 0)).backward()
    return [str(warning.message) for warning in caught]


def test_a_backward_without_a_forward_of_its_own_warns(gloo_pair: GlooPair) -> None:
    for told in gloo_pair.run(run_a_backward_too_many):
        assert len(told) == 1
        assert told[0].startswith("layers.3.")
        assert "replicas drift apart" in told[0]


def lose_a_peer(seconds: float) -> str:
    group = dist.new_group(timeout=datetime.timedelta(seconds=seconds))
    ours = BucketedDDP(models.Mlp(), process_group=group, **CAP)
    loss_of(ours(inputs(0, 0), 0)).backward()
    loss = loss_of(ours(inputs(1, 0), 0))
    return message_of(loss.backward, RunError) if dist.get_rank() == 0 else ""


def test_a_silent_peer_surfaces_with_rank_and_bucket_after_the_groups_time_out(gloo_pair: GlooPair) -> None:
    message = gloo_pair.run(lose_a_peer, 3.0)[0]
    assert message.startswith("Rank 0: the reduction of bucket 0 (")
    assert "bytes) failed: " in message
    assert re.search("time.?out|timed out", message, re.IGNORECASE)  # gloo words it by who noticed first


class SparseWithoutModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(8, 4))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return nn.functional.embedding(tokens, self.weight, sparse=True)


def meet_a_sparse_gradient(batched: bool) -> str:
    ours = BucketedDDP(SparseWithoutModule(), batched_grad_copy=batched)
    return message_of(lambda: ours(torch.arange(3)).sum().backward(), RunError)


@pytest.mark.parametrize("batched", [True, False])
def test_a_sparse_gradient_is_refused(gloo_pair: GlooPair, batched: bool) -> None:
    for message in gloo_pair.run(meet_a_sparse_gradient, batched):
        assert message.startswith("A parameter of shape (8, 4) got a sparse gradient")


def refuse_at_wrapping() -> list[str]:
    uninitialized = nn.LazyLinear(3)
    attempts: list[tuple[nn.Module, dict[str, Any]]] = [
        (nn.Linear(2, 2).requires_grad_(False), {}),
        (uninitialized, {}),
        (nn.Sequential(nn.Embedding(4, 4, sparse=True)), {}),
        (nn.Linear(2, 2), {"device_ids": [0]}),
        (nn.Linear(2, 2), {"device_ids": [0, 1]}),
        (nn.Linear(2, 2), {"output_device": 0}),
        (nn.Linear(2, 2), {"dim": 1}),
        (nn.Linear(2, 2), {"check_reduction": True}),
        (nn.Linear(2, 2), {"mixed_precision": object()}),
        (nn.Linear(2, 2), {"device_mesh": object()}),
        (nn.Linear(2, 2), {"bucket_cap_mb": -1}),
    ]
    return [message_of(lambda m=model, s=settings: BucketedDDP(m, **s), UsageError) for model, settings in attempts]  # type: ignore[misc]


def test_what_cannot_be_honoured_is_refused_at_wrapping(gloo_pair: GlooPair) -> None:
    expected = [
        "no parameter of the module requires a gradient",
        "run one forward through it before wrapping",
        "0 has sparse gradients",
        "parameters are on ['cpu']",
        "several device_ids",
        "output_device without device_ids",
        "does not support dim",
        "does not support check_reduction",
        "does not support mixed_precision",
        "does not support device_mesh",
        "A bucket cap of -1 MiB",
    ]
    for messages in gloo_pair.run(refuse_at_wrapping):
        for message, part in zip(messages, expected, strict=True):
            assert part in message


def copy_and_pickle() -> tuple[list[str], list[float], str]:
    torch.manual_seed(0)
    ours = BucketedDDP(models.Mlp(), bucket_cap_mb_list=[0.001, 0.01], gradient_as_bucket_view=True).eval()
    copies = [copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))]
    sums: list[float] = []
    for wrapped in (ours, *copies):
        loss_of(wrapped(inputs(0, dist.get_rank()), 0)).backward()
        sums.append(sum(p.grad.sum().item() for p in wrapped.parameters()))
        assert not wrapped.training
        assert wrapped.config == ours.config
        assert wrapped.module is not ours.module or wrapped is ours
    other_group = BucketedDDP(models.Mlp(), process_group=dist.new_group())
    return list(ours.state_dict()), sums, message_of(lambda: copy.deepcopy(other_group), UsageError)


def test_copies_average_on_their_own_and_state_keys_are_torchs(gloo_pair: GlooPair) -> None:
    (keys, sums_0, refusal), (_, sums_1, _) = gloo_pair.run(copy_and_pickle)
    assert keys[:2] == ["module.layers.0.weight", "module.layers.0.bias"]
    assert sums_0 == sums_1
    assert len(set(sums_0)) == 1
    assert "default process group" in refusal


def forget_a_wrapper() -> tuple[float, float]:
    """Wraps a module twice; the first wrapper's hooks must be gone."""
    model = models.Mlp()
    BucketedDDP(model)
    ours = BucketedDDP(model)
    loss_of(ours(inputs(0, dist.get_rank()), 0)).backward()
    assert model.layers[0].weight.grad is not None
    mine = model.layers[0].weight.grad.sum()
    everyones = mine.clone()
    dist.all_reduce(everyones)
    return mine.item(), everyones.item() / dist.get_world_size()


def test_a_module_can_be_wrapped_again(gloo_pair: GlooPair) -> None:
    for mine, mean in gloo_pair.run(forget_a_wrapper):
        assert mine == pytest.approx(mean)
