"""Small trainings whose numbers can be checked by hand: averaging, accumulation, equality with one process."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.parallel import DistributedDataParallel

from tests.ddp.collectives import recorded
from tests.gloo_pair import GlooPair
from workloads.ddp import BucketedDDP

WRAPPERS = (BucketedDDP, DistributedDataParallel)
Wrapper = type[BucketedDDP] | type[DistributedDataParallel]


def first_gradients(wrapper: Wrapper) -> list[float]:
    torch.manual_seed(0)
    ddp = wrapper(nn.Linear(4, 1, bias=False))
    torch.manual_seed(10 + dist.get_rank())
    x = torch.randn(2, 4)

    def gradient_after(*silent: bool) -> float:
        ddp.zero_grad(set_to_none=True)
        for is_silent in silent:
            with ddp.no_sync() if is_silent else nullcontext():
                ddp(x).sum().backward()
        return round(ddp.module.weight.grad[0, 0].item(), 4)

    return [gradient_after(True), gradient_after(False), gradient_after(True, False), gradient_after(True, True)]


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_gradients_are_averaged_not_summed(gloo_pair: GlooPair, wrapper: Wrapper) -> None:
    #                  private, averaged, silent + averaged, two silent
    assert gloo_pair.run(first_gradients, wrapper) == [
        [0.3184, 0.2714, 0.5428, 0.6369],
        [0.2244, 0.2714, 0.5428, 0.4487],
    ]


def accumulate(wrapper: Wrapper, num_synchronised: int) -> tuple[str, int]:
    torch.manual_seed(0)
    ddp = wrapper(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    torch.manual_seed(20 + dist.get_rank())
    batches = [(torch.randn(2, 4), torch.randn(2, 1)) for _ in range(4)]
    with recorded() as sent:
        for index, (x, y) in enumerate(batches):
            is_silent = index < len(batches) - num_synchronised
            with ddp.no_sync() if is_silent else nullcontext():
                (mse_loss(ddp(x), y) / len(batches)).backward()
        optimizer.step()
    return f"{ddp.module.weight.sum().item():+.6f}", len(sent.all_reduces)


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_one_exchange_serves_four_micro_batches(gloo_pair: GlooPair, wrapper: Wrapper) -> None:
    assert gloo_pair.run(accumulate, wrapper, 1) == [("-0.686250", 1)] * 2


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_without_a_synchronised_micro_batch_the_replicas_drift_apart(gloo_pair: GlooPair, wrapper: Wrapper) -> None:
    (weight_0, sent_0), (weight_1, sent_1) = gloo_pair.run(accumulate, wrapper, 0)
    assert weight_0 != weight_1
    assert sent_0 == sent_1 == 0


def train_gelu_mlp() -> tuple[float, float, list[int]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 10))
    alone, reference = copy.deepcopy(model), DistributedDataParallel(copy.deepcopy(model), bucket_cap_mb=1 / 16)
    ours = BucketedDDP(copy.deepcopy(model), bucket_cap_mb=1 / 16)
    torch.manual_seed(123)
    x, y = torch.randn(32, 64), torch.randint(0, 10, (32,))
    part = slice(16 * dist.get_rank(), 16 * dist.get_rank() + 16)
    num_launched: list[int] = []
    for trained, inputs, targets in ((alone, x, y), (reference, x[part], y[part]), (ours, x[part], y[part])):
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            loss = cross_entropy(trained(inputs), targets)
            with recorded() as sent:
                loss.backward()
            if trained is ours:
                num_launched.append(sum("bucket_launch" in event for event in sent.events))
            optimizer.step()
    return difference(ours.module, alone), difference(ours.module, reference.module), num_launched


def difference(one: nn.Module, other: nn.Module) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max((p - q).abs().max().item() for p, q in pairs)


def test_training_equals_one_process_and_torchs_wrapper(gloo_pair: GlooPair) -> None:
    for to_alone, to_torch, num_launched in gloo_pair.run(train_gelu_mlp):
        assert to_alone < 1e-6
        assert to_torch < 1e-6
        assert num_launched == [1, 2, 2]
