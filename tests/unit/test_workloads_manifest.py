from __future__ import annotations

import pytest
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.gloo_pair import GlooPair
from workloads.comm_hooks import register_named_hook
from workloads.ddp import BucketedDDP
from workloads.manifest import read_config

NAMES = ("none", "allreduce", "fp16", "bf16", "powersgd:2", "noop")


def read_hooks_back(of_torch: bool) -> list[str]:
    found = []
    for name in NAMES:
        model = nn.Linear(4, 4)
        ddp = DistributedDataParallel(model) if of_torch else BucketedDDP(model)
        register_named_hook(ddp, name)
        found.append(read_config(ddp).comm_hook)
    return found


@pytest.mark.parametrize("of_torch", [True, False])
def test_a_registered_hook_is_read_back_under_its_own_name(gloo_pair: GlooPair, of_torch: bool) -> None:
    assert gloo_pair.run(read_hooks_back, of_torch) == [list(NAMES)] * 2
