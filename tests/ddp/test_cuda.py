"""Parity with torch's DDP for tensors on a GPU, two gloo ranks sharing it; skipped where there is none."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.ddp.parity import difference
from tests.gloo_pair import GlooPair
from workloads.ddp import BucketedDDP

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
NUM_STEPS = 5


def train_on_gpu(as_view: bool) -> tuple[float, list[list[int]]]:
    """The largest difference of the parameters after a few steps under either wrapper, and our buckets."""
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.GELU()))).cuda()
    settings = {"bucket_cap_mb": 0.5, "gradient_as_bucket_view": as_view}
    ours = BucketedDDP(copy.deepcopy(model), device_ids=[0], **settings)
    theirs = DistributedDataParallel(copy.deepcopy(model), device_ids=[0], **settings)
    for wrapped in (ours, theirs):
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.05)
        generator = torch.Generator().manual_seed(torch.distributed.get_rank())
        for _ in range(NUM_STEPS):
            optimizer.zero_grad()
            wrapped(torch.randn(8, 256, generator=generator)).square().mean().backward()
            optimizer.step()
    return difference(ours.module, theirs.module), ours.bucket_layout()


@needs_gpu
@pytest.mark.parametrize("as_view", [False, True])
def test_ours_trains_what_torchs_trains(gloo_pair: GlooPair, as_view: bool) -> None:
    for distance, layout in gloo_pair.run(train_on_gpu, as_view):
        assert distance <= 1e-6
        assert len(layout) > 1
