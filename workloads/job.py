"""What can be trained, profiled and swept: a `Job`, and the factory that builds one on every rank.

A factory is any callable `(JobContext) -> Job`. The reference workloads are factories of this package; a person's own
is named by `module:factory` or `path/to/file.py:factory` and found from the working directory.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from advisor.errors import UsageError
from advisor.schema import Struct

if TYPE_CHECKING:
    import torch
    from torch import nn

Precision = Literal["float32", "bf16", "autocast"]
"""`bf16` casts the model, so gradients travel in 16 bits; `autocast` keeps float32 parameters and gradients."""

PRESETS = ("tiny", "small", "large")
"""For tests, for two CPU cores, for a GPU."""


@dataclass(frozen=True)
class Workload:
    """A reference workload: its name, its factory and what it is for."""

    name: str
    factory: str
    summary: str


WORKLOADS: tuple[Workload, ...] = (
    Workload("mlp", "workloads.models.mlp:build_job", "equal linear layers: gradients become ready at a steady pace"),
    Workload("gpt", "workloads.models.gpt:build_job", "a small transformer; option head=tied or head=untied"),
)


class JobSpec(Struct, frozen=True, kw_only=True):
    """Which job to build, the same on every rank; `options` belong to the workload itself."""

    workload: str
    preset: str = "small"
    seed: int = 0
    precision: Precision = "float32"
    activation_checkpointing: bool = False
    compile: bool = False
    options: dict[str, str] = msgspec.field(default_factory=dict)


@dataclass(frozen=True)
class JobContext:
    """What a factory is told: which job, and where it runs."""

    spec: JobSpec
    rank: int
    world_size: int
    device: torch.device

    def generator(self, *keys: int) -> torch.Generator:
        """A CPU generator that depends on nothing but the seed and `keys`, such as rank and step."""
        import torch

        return torch.Generator().manual_seed(hash((self.spec.seed, *keys)) % 2**63)


@dataclass(frozen=True)
class Job:
    """A training job without its wrapper.

    Attributes:
        model: On any device, with the same weights on every rank or not: DDP broadcasts rank 0's.
        loss: `loss(wrapped_model, batch)`, the mean over the batch as a scalar tensor.
        batches: `batches(rank, micro_step)`, or an iterable of this rank's batches that starts anew when it ends.
        optimizer: `optimizer(parameters)`.
    """

    model: nn.Module
    loss: Callable[[nn.Module, Any], torch.Tensor]
    batches: Callable[[int, int], Any] | Iterable[Any]
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def check_spec(spec: JobSpec) -> None:
    """Refuses a spec that cannot be meant, without importing torch or the workload.

    Raises:
        UsageError: The workload, its file or the preset is unknown.
    """
    if ":" in spec.workload:
        _check_file(spec.workload.rpartition(":")[0])
        return
    known = [workload.name for workload in WORKLOADS]
    if spec.workload not in known:
        raise UsageError(
            f"There is no workload {spec.workload!r}: choose one of {', '.join(known)}, "
            "or name your own as module:factory or file.py:factory."
        )
    if spec.preset not in PRESETS:
        raise UsageError(f"There is no preset {spec.preset!r} of {spec.workload}: choose one of {', '.join(PRESETS)}.")


def build_job(context: JobContext) -> Job:
    """Builds the job named by `context.spec`, with torch's global generator at the spec's seed.

    Raises:
        UsageError: The workload cannot be found, or its factory returned something else than a `Job`.
    """
    import torch

    check_spec(context.spec)
    factory = resolve_factory(context.spec.workload)
    torch.manual_seed(context.spec.seed)
    job = factory(context)
    if not isinstance(job, Job):
        raise UsageError(
            f"The factory {context.spec.workload} returned a {type(job).__name__}: it has to return a "
            "workloads.job.Job(model, loss, batches, optimizer)."
        )
    return job


def resolve_factory(workload: str) -> Callable[[JobContext], Job]:
    """Finds the factory behind a workload's name, `module:factory` or `file.py:factory`.

    Raises:
        UsageError: There is no such file, module or factory.
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


def _check_file(module_name: str) -> None:
    if module_name.endswith(".py") and not Path(module_name).is_file():
        raise UsageError(f"There is no file {module_name} to take the workload from: check the path.")


def _load_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


Options = TypeVar("Options", bound=Struct)
Preset = TypeVar("Preset")


def choose_preset(presets: Mapping[str, Preset], context: JobContext) -> Preset:
    """The sizes a workload has under the context's preset; `check_spec` has seen the name before."""
    return presets[context.spec.preset]


def read_options(kind: type[Options], context: JobContext) -> Options:
    """The workload's own options, as strings from the command line, in the types that it declares.

    Raises:
        UsageError: An option is unknown or has a value it cannot take.
    """
    unknown = set(context.spec.options) - set(kind.__struct_fields__)
    if unknown:
        known = ", ".join(kind.__struct_fields__) or "none"
        raise UsageError(f"{context.spec.workload} has no option {min(unknown)!r}: it knows {known}.")
    try:
        return msgspec.convert(context.spec.options, kind, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"An option of {context.spec.workload} cannot be read: {error}.") from error
