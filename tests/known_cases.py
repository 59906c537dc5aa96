"""Small trainings on two gloo ranks whose traces hold known facts, right ones and wrong ones, and what records them.

A case is a generator that yields after every step. It runs in the processes of `tests/gloo_pair.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.join import Join
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD
from torch.profiler import ProfilerActivity, profile, schedule

from advisor.schema import DDPConfig
from workloads.factories import build_job
from workloads.job import JobContext, JobSpec
from workloads.models.straggler import SleepInBackward
from workloads.place import Place
from workloads.record import record
from workloads.train import Training

Case = Callable[..., Iterator[object]]
NUM_STEPS = 5
"""The first two are left out by the analysis."""


def profile_case(case: Case, settings: dict[str, Any], folder: Path) -> None:
    """Records a case from its first step on, as a person does without our recorder."""
    folder.mkdir(exist_ok=True)
    torch.manual_seed(0)

    def export(profiler: profile) -> None:
        profiler.export_chrome_trace(str(folder / f"rank{dist.get_rank()}.pt.trace.json"))

    steps = schedule(wait=0, warmup=0, active=NUM_STEPS, repeat=1)
    with profile(
        activities=[ProfilerActivity.CPU], schedule=steps, on_trace_ready=export, record_shapes=True
    ) as profiler:
        for _ in case(**settings):
            profiler.step()
    dist.barrier()


def record_workload(spec: JobSpec, config: DDPConfig, folder: Path) -> None:
    """Records a reference workload with our recorder, manifest and all."""
    place = Place(dist.get_rank(), dist.get_world_size(), torch.device("cpu"), "gloo")
    training = Training(build_job(JobContext(spec, place.rank, place.world_size, place.device)), config, place)
    with record(training.model, folder, num_steps=3, config=config) as recorder:
        while not recorder.done:
            training.step()
            recorder.step()


def record_base_model(folder: Path, **settings: Any) -> None:
    """Records the base model with our recorder."""
    ddp = DistributedDataParallel(base_model(), **settings)
    optimizer = SGD(ddp.parameters(), lr=0.01)
    with record(ddp, folder, num_steps=3) as recorder:
        while not recorder.done:
            ddp(torch.randn(16, 512)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            recorder.step()


# -------------------------------------------------------------------------------------------------------- buckets


def base_model(num_layers: int = 8) -> nn.Sequential:
    """Layers of 262656 elements; eight have 8.40 MB."""
    return nn.Sequential(*(layer for _ in range(num_layers) for layer in (nn.Linear(512, 512), nn.ReLU())))


def train(ddp: nn.Module, batch: Tensor, loss: Callable[[Tensor], Tensor] = torch.mean) -> Iterator[object]:
    """Plain steps."""
    optimizer = SGD(ddp.parameters(), lr=0.01)
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        loss(ddp(batch)).backward()
        yield optimizer.step()


def train_base_model(hook: str = "", **settings: Any) -> Iterator[object]:
    ddp = DistributedDataParallel(base_model(), **settings)
    if hook:
        ddp.register_comm_hook(None, getattr(default_hooks, hook))
    return train(ddp, torch.randn(16, 512))


def train_late(delay_s: float = 0.15) -> Iterator[object]:
    """Two MLPs of four layers; between them rank 1 sleeps in every backward."""

    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = base_model(4), base_model(4)

        def forward(self, x: Tensor) -> Tensor:
            pause = delay_s if dist.get_rank() == 1 else 0.0
            output: Tensor = self.last(SleepInBackward.apply(self.first(x), pause))  # type: ignore[no-untyped-call]
            return output

    return train(DistributedDataParallel(Late(), bucket_cap_mb=2), torch.randn(16, 512))


def train_tied() -> Iterator[object]:
    """An embedding tied to the head, whose gradient is ready only at the very end."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(8000, 128)
            self.layers = nn.Sequential(*(nn.Linear(128, 128) for _ in range(6)))
            self.head = nn.Linear(128, 8000, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, tokens: Tensor) -> Tensor:
            output: Tensor = self.head(self.layers(self.embedding(tokens)))
            return output

    return train(DistributedDataParallel(Tied(), bucket_cap_mb=1), torch.arange(16))


def train_batch_norms(**settings: Any) -> Iterator[object]:
    """Twenty layers with running statistics, and one with weights enough to see."""
    model = nn.Sequential(*(nn.BatchNorm1d(64) for _ in range(20)), nn.Linear(64, 64))
    return train(DistributedDataParallel(model, **settings), torch.randn(8, 64))


def train_unevenly() -> Iterator[object]:
    """`Join`: rank 1 has two batches less."""
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2)))
    optimizer = SGD(ddp.parameters(), lr=0.1)
    with Join([ddp]):
        for batch in torch.randn(NUM_STEPS - 2 * dist.get_rank(), 6, 8):
            optimizer.zero_grad()
            ddp(batch).square().sum().backward()
            yield optimizer.step()


# --------------------------------------------------------------------------------------------------- accumulation


def accumulate(silent: str, num_micro_steps: int = 4, *, clear_between: bool = False) -> Iterator[object]:
    """Four micro-batches an update.

    Args:
        silent: What is in `no_sync`: `nothing`, `backward` alone, `right` (all but the last), or `everything`.
        num_micro_steps: Of an update.
        clear_between: Whether gradients are cleared before every micro-batch.
    """
    ddp = DistributedDataParallel(base_model(), bucket_cap_mb=2)
    optimizer = SGD(ddp.parameters(), lr=0.01)
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        for micro_step in range(num_micro_steps):
            if clear_between:
                optimizer.zero_grad()
            with ExitStack() as stack:
                is_last = micro_step == num_micro_steps - 1
                if silent == "everything" or (silent == "right" and not is_last):
                    stack.enter_context(ddp.no_sync())
                loss = ddp(torch.randn(16, 512)).square().mean() / num_micro_steps
                if silent == "backward" and not is_last:
                    stack.enter_context(ddp.no_sync())
                loss.backward()
        yield optimizer.step()


def never_synchronise() -> Iterator[object]:
    """Four silent micro-batches an update of one layer: the ranks' weights drift apart."""
    ddp = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = SGD(ddp.parameters(), lr=0.1)
    torch.manual_seed(20 + dist.get_rank())
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        for _ in range(4):
            with ddp.no_sync():
                (mse_loss(ddp(torch.randn(2, 4)), torch.randn(2, 1)) / 4).backward()
        yield optimizer.step()


def reduce_by_hand() -> Iterator[object]:
    """Silent micro-batches, and then one all-reduce of all gradients that the person wrote."""
    ddp = DistributedDataParallel(nn.Linear(64, 64))
    optimizer = SGD(ddp.parameters(), lr=0.1)
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        for _ in range(2):
            with ddp.no_sync():
                ddp(torch.randn(8, 64)).square().mean().backward()
        for parameter in ddp.parameters():
            dist.all_reduce(parameter.grad)
        yield optimizer.step()


def accumulate_with_an_inner_module() -> Iterator[object]:
    """Only the outer of two DDP modules is silent."""

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = DistributedDataParallel(nn.Linear(64, 64))
            self.head = nn.Linear(64, 128)

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.head(self.inner(x))
            return output

    ddp = DistributedDataParallel(Outer())
    optimizer = SGD(ddp.parameters(), lr=0.01)
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        for micro_step in range(2):
            with ExitStack() as stack:
                if micro_step == 0:
                    stack.enter_context(ddp.no_sync())
                ddp(torch.randn(8, 64)).square().mean().backward()
        yield optimizer.step()


# ---------------------------------------------------------------------------------------- what is reduced and weighed


def unfreeze_late() -> Iterator[object]:
    """A layer that is unfrozen after wrapping is trained, and never reduced."""
    model = base_model(3)
    for parameter in model[2].parameters():
        parameter.requires_grad_(False)
    ddp = DistributedDataParallel(model, bucket_cap_mb=1)
    for parameter in model[2].parameters():
        parameter.requires_grad_(True)
    return train(ddp, torch.randn(16, 512))


def train_a_head_outside() -> Iterator[object]:
    """A layer of the loss that is not under DDP."""
    ddp, head = DistributedDataParallel(base_model(2)), nn.Linear(512, 16)
    optimizer = SGD([*ddp.parameters(), *head.parameters()], lr=0.01)
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        head(ddp(torch.randn(16, 512))).square().mean().backward()
        yield optimizer.step()


def average_tokens(share_counts: bool = False) -> Iterator[object]:
    """Rank 0 averages 2 tokens of gradient 1, rank 1 averages 6 of gradient 3; the mean over all 8 is 2.5."""
    rank = dist.get_rank()
    tokens = torch.full((2 + 4 * rank, 2), 1.0 + 2.0 * rank)
    ddp = DistributedDataParallel(nn.Linear(2, 1, bias=False))
    optimizer = SGD(ddp.parameters(), lr=0.0)
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        factor = torch.ones(1)
        if share_counts:
            factor = torch.tensor([float(len(tokens))])
            dist.all_reduce(factor)
            factor = len(tokens) * dist.get_world_size() / factor
        (ddp(tokens).mean() * factor).backward()
        assert round(next(ddp.parameters()).grad[0, 0].item(), 6) == (2.5 if share_counts else 2.0)  # type: ignore[index]
        yield optimizer.step()


def classify_unevenly() -> Iterator[object]:
    """A cross-entropy over 4 samples in the first micro-batch and 12 in the second."""
    ddp = DistributedDataParallel(nn.Linear(8, 3))
    optimizer = SGD(ddp.parameters(), lr=0.1)
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        for micro_step, size in enumerate((4, 12)):
            with ExitStack() as stack:
                if micro_step == 0:
                    stack.enter_context(ddp.no_sync())
                (cross_entropy(ddp(torch.randn(size, 8)), torch.arange(size) % 3) / 2).backward()
        yield optimizer.step()


def clip_a_global_norm() -> Iterator[object]:
    """The norm of the gradients is all-reduced after backward, as a person may do to log it."""
    ddp = DistributedDataParallel(base_model(2))
    optimizer = SGD(ddp.parameters(), lr=0.01)
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        ddp(torch.randn(16, 512)).square().mean().backward()
        norm = nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
        dist.all_reduce(norm)
        yield optimizer.step()


def take_turns() -> Iterator[object]:
    """Two DDP modules with an optimizer each, as in adversarial training: four all-reduces, none of them too many."""
    first, second = (DistributedDataParallel(nn.Linear(64, size)) for size in (64, 32))
    optimizers = [SGD(model.parameters(), lr=0.01) for model in (first, second)]
    for _ in range(NUM_STEPS):
        for model, optimizer in zip((first, second), optimizers, strict=True):
            optimizer.zero_grad()
            model(torch.randn(8, 64)).square().mean().backward()
            optimizer.step()
        yield None
