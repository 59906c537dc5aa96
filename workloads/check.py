"""Does a job train on several ranks what it would train on one? Four checks, each with a reason to act on.

What they catch: a loss that goes around the wrapper, ranks that read the same samples, replicas that drift apart, and
parameters that are trained but never averaged.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, combinations, islice
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.futures import Future
from torch.utils._pytree import tree_leaves

from advisor.schema import DDPConfig, write_json
from workloads.combined import Alone, combine_gradients
from workloads.exchange import Reporter
from workloads.factories import build_job
from workloads.job import Job, JobContext, Precision
from workloads.manifest import trainable_parameters
from workloads.place import Place, settle_config
from workloads.requests import CheckRequest, CheckResult, CheckResults
from workloads.train import Training, iterate_batches

NUM_STEPS = 2
"""Optimizer steps after which replicas are compared; their batches are those that must differ between ranks."""
EXACT_TOLERANCE = 1e-4
"""Relative distance of two gradients that only add in another order."""
ROUNDED_TOLERANCE = 0.02
"""The same where gradients travel in 16 bits."""
NEGLIGIBLE = 1e-3
"""A parameter's gradient below this share of the whole gradient is judged against that share."""

T = TypeVar("T")
Answer = tuple[bool, str]
"""Whether the check passed, and what was seen."""


def check_job(request: CheckRequest, place: Place, reporter: Reporter) -> None:
    """Runs all checks and writes their results, on rank 0, to `request.out`."""
    config = settle_config(request.config, place)
    job = build_job(JobContext(request.job, place.rank, place.world_size, place.device))
    fixed = fix_batches(job, config, place)
    tolerance = _tolerance(request.job.precision, config)
    checks: tuple[tuple[str, Callable[[], Answer]], ...] = (
        ("ranks read different samples", lambda: check_samples(fixed)),
        ("an update equals the combined batch's", lambda: check_update(fixed, config, place, tolerance)),
        ("replicas and optimizer states agree", lambda: check_replicas(fixed, config, place)),
        ("reduced bytes equal trainable bytes", lambda: check_reduced_bytes(fixed, config, place)),
    )
    results = []
    for done, (name, check) in enumerate(checks, start=1):
        passed, message = check()
        results.append(CheckResult(name=name, passed=passed, message=message))
        reporter.report(done, len(checks), name)
    if place.rank == 0:
        write_json(CheckResults(results=tuple(results)), Path(request.out))


def fix_batches(job: Job, config: DDPConfig, place: Place) -> Job:
    """The job on a list of its first batches, with its own random seed for each, so that it can be repeated exactly."""
    num_batches = NUM_STEPS * config.accumulation_steps
    batches = list(enumerate(islice(iterate_batches(job, place.rank), num_batches)))

    def loss(model: nn.Module, numbered: tuple[int, Any]) -> torch.Tensor:
        micro_step, batch = numbered
        torch.manual_seed(place.rank * num_batches + micro_step)
        return job.loss(model, batch)

    weigh = job.weight
    weight = None if weigh is None else lambda numbered: weigh(numbered[1])
    return replace(job, loss=loss, batches=batches, weight=weight, scales_loss=False, compiles=False)


def check_samples(fixed: Job) -> Answer:
    """Whether no two ranks hold the same batch."""
    assert isinstance(fixed.batches, list)
    digests = [_digest(tree_leaves(batch)) for _, batch in fixed.batches]
    for (rank, ours), (other, theirs) in combinations(enumerate(_gather(digests)), 2):
        for micro_step, digest in enumerate(ours):
            if digest in theirs:
                return False, (
                    f"Ranks {rank} and {other} both read the batch of micro-step {micro_step}: give each rank its own "
                    "share of the samples, by a DistributedSampler or a seed that depends on the rank."
                )
    return True, f"The first {len(digests)} batches of every rank differ from all others'."


def check_update(fixed: Job, config: DDPConfig, place: Place, tolerance: float) -> Answer:
    """Whether DDP's gradients are those of all ranks' batches together."""
    training = Training(_copy_of(fixed), config, place)
    alone = Alone(copy.deepcopy(training.model.module))  # type: ignore[arg-type]
    training.backward()
    combined = combine_gradients(fixed, alone, config, place)
    whole = float(torch.stack([gradient.norm() for gradient in combined]).norm())
    distances: list[tuple[float, str]] = []
    for (name, parameter), expected in zip(trainable_parameters(training.model), combined, strict=True):
        ours = torch.zeros_like(expected) if parameter.grad is None else parameter.grad
        scale = max(float(expected.norm()), NEGLIGIBLE * whole)
        distance = float((ours - expected).norm())
        distances.append((distance / scale if scale else distance, name))
    # A NaN compares as neither larger nor smaller than anything, and must not pass.
    worst, name = max(chain.from_iterable(_gather(distances)), key=lambda told: (math.isnan(told[0]), told[0]))
    seen = f"the largest relative distance of a gradient is {worst:.1e}, the limit {tolerance:.0e}"
    if worst <= tolerance:
        return True, f"After one backward on {place.world_size} ranks {seen}."
    return False, (
        f"The gradient of {name} is not that of all ranks' batches together ({seen}): "
        "the loss has to call the wrapped model, and nothing may change a gradient before it is averaged."
    )


def check_replicas(fixed: Job, config: DDPConfig, place: Place) -> Answer:
    """Whether parameters and optimizer states are the same on all ranks after some steps, to the bit."""
    training = Training(_copy_of(fixed), config, place)
    for _ in range(NUM_STEPS):
        training.step()
    first, *others = _gather(dict(_digest_state(training)))
    for rank, digests in enumerate(others, start=1):
        different = [name for name in first | digests if first.get(name) != digests.get(name)]
        if different:
            return False, (
                f"After {NUM_STEPS} steps {different[0]} differs between rank 0 and rank {rank}: "
                "something updates it on its own rank only."
            )
    return True, f"After {NUM_STEPS} steps {len(first)} tensors are the same on all ranks, to the bit."


def check_reduced_bytes(fixed: Job, config: DDPConfig, place: Place) -> Answer:
    """Whether a step averages as many bytes as there are trainable parameters."""
    plain = msgspec.structs.replace(config, comm_hook="none", skip_all_reduce_unused_params=False)
    training = Training(_copy_of(fixed), plain, place)
    bucket_bytes: list[int] = []
    training.model.register_comm_hook(bucket_bytes, _count_and_average)  # type: ignore[operator]
    for _ in range(NUM_STEPS):
        bucket_bytes.clear()
        training.step()
    trainable = [parameter for _, parameter in trainable_parameters(training.model)]
    expected = sum(parameter.numel() * parameter.element_size() for parameter in trainable)
    seen = f"A step averages {sum(bucket_bytes):,} bytes, and {expected:,} bytes are trainable"
    if sum(bucket_bytes) == expected:
        return True, f"{seen}."
    return False, f"{seen}: freeze, unfreeze or add parameters before the model is wrapped, never after."


def _count_and_average(bucket_bytes: list[int], bucket: GradBucket) -> Future[torch.Tensor]:
    bucket_bytes.append(bucket.buffer().numel() * bucket.buffer().element_size())
    # allreduce_hook takes None for the default process group, against its own annotation.
    return default_hooks.allreduce_hook(None, bucket)  # type: ignore[arg-type]


# torch compares a hook's annotations with classes, and these are strings.
_count_and_average.__annotations__.clear()


def _tolerance(precision: Precision, config: DDPConfig) -> float:
    is_exact = precision != "bf16" and config.comm_hook in ("none", "allreduce", "noop")
    return EXACT_TOLERANCE if is_exact else ROUNDED_TOLERANCE


def _copy_of(job: Job) -> Job:
    return replace(job, model=copy.deepcopy(job.model))


def _digest_state(training: Training) -> Iterator[tuple[str, str]]:
    for name, parameter in trainable_parameters(training.model):
        yield name, _digest([parameter])
        for key, value in training.optimizer.state.get(parameter, {}).items():
            yield f"the optimizer's {key} of {name}", _digest([value])


def _gather(value: T) -> list[T]:
    """Every rank's value, in the order of the ranks."""
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, value)
    return told


def _digest(leaves: Sequence[Any]) -> str:
    digest = hashlib.sha256()
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            digest.update(leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        else:
            digest.update(repr(leaf).encode())
    return digest.hexdigest()
