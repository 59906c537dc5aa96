from __future__ import annotations

import pytest

from advisor.parallelism import name_parallelism
from advisor.schema import Parallelism
from tests.trace_builders import NODE, RankTrace, lay_out

TRAINS = f"{NODE}MmBackward0"


@pytest.mark.parametrize(
    ("names", "parallelism"),
    [
        ({"DistributedDataParallel.forward"}, "ddp"),
        ({"BucketedDDP.forward"}, "ddp"),
        ({"torch.distributed.ddp.reducer::copy_bucket_to_grad"}, "ddp"),
        ({"bucketed_ddp::bucket_launch#0"}, "ddp"),
        ({"FullyShardedDataParallel._pre_forward", TRAINS}, "fsdp"),
        ({"FSDP::pre_backward (layers.0)"}, "fsdp"),
        ({"Optimizer.step#DeepSpeedCPUAdam.step"}, "deepspeed"),
        ({f"{NODE}_ReduceFromModelParallelRegionBackward"}, "tensor_parallel"),
        ({f"{NODE}_ToTorchTensorBackward"}, "tensor_parallel"),
        ({"aten::mm", TRAINS}, "unknown"),
        (set(), "unknown"),
    ],
)
def test_the_wrapper_is_told_by_what_it_writes(names: set[str], parallelism: Parallelism) -> None:
    assert name_parallelism(frozenset(names), []) == parallelism


@pytest.mark.parametrize(("with_backward", "parallelism"), [(True, "hand_written"), (False, "unknown")])
def test_training_that_reduces_without_a_wrapper_is_hand_written(with_backward: bool, parallelism: Parallelism) -> None:
    trace = RankTrace()
    trace.step(2, 0, 1000)
    if with_backward:
        trace.node(100, 200)
    trace.gloo(300, 310, 400, 64)
    assert lay_out(trace).observations[0].parallelism == parallelism
