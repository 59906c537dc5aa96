"""From a job's name to the job: finds the factory, calls it, and applies what the spec says about precision."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from advisor.errors import UsageError
from workloads.job import WORKLOADS, Job, JobContext, check_spec


def build_job(context: JobContext) -> Job:
    """Builds the job named by `context.spec`, with torch's global generator at the spec's seed.

    Raises:
        UsageError: The workload cannot be found, or its factory returned something else than a `Job`.
    """
    check_spec(context.spec)
    factory = resolve_factory(context.spec.workload)
    torch.manual_seed(context.spec.seed)
    job = factory(context)
    if not isinstance(job, Job):
        raise UsageError(
            f"The factory {context.spec.workload} returned a {type(job).__name__}: it has to return a "
            "workloads.job.Job(model, loss, batches, optimizer)."
        )
    job.model.to(context.dtype)
    autocast_dtype = {"autocast": torch.bfloat16, "amp": torch.float16}.get(context.spec.precision)
    return replace(
        job,
        loss=_autocast(job, context.device.type, autocast_dtype) if autocast_dtype else job.loss,
        scales_loss=job.scales_loss or context.spec.precision == "amp",
        compiles=job.compiles or context.spec.compile,
    )


def _autocast(job: Job, device_type: str, dtype: torch.dtype) -> Callable[[nn.Module, Any], torch.Tensor]:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        with torch.autocast(device_type, dtype):
            return job.loss(model, batch)

    return loss


def resolve_factory(workload: str) -> Callable[[JobContext], Job]:
    """Finds the factory behind a workload's name, `module:factory` or `file.py:factory`.

    Raises:
        UsageError: There is no such module or factory.
    """
    reference = next((known.factory for known in WORKLOADS if known.name == workload), workload)
    module_name, _, attribute = reference.rpartition(":")
    module = _load_file(Path(module_name)) if module_name.endswith(".py") else _load_module(module_name)
    factory = getattr(module, attribute, None)
    if not callable(factory):
        raise UsageError(f"{module_name} has no factory {attribute!r}: name a function that takes a JobContext.")
    return factory  # type: ignore[no-any-return]


def _load_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Only the module that was asked for may be missing; what it imports itself is the person's own traceback.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise UsageError(
            f"There is no module {name!r} to take the workload from: run from the folder that holds it."
        ) from error


def _load_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
