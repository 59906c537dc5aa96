"""What can be trained, profiled and swept: a `Job`, and what the factory that builds one on every rank is told.

A factory is any callable `(JobContext) -> Job`. The reference workloads are factories of this package; a person's own
is named by `module:factory` or `path/to/file.py:factory` and found from the working directory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from advisor.errors import UsageError
from advisor.schema import Struct

if TYPE_CHECKING:
    import torch
    from torch import nn

Precision = Literal["float32", "bf16", "autocast", "amp"]
"""`bf16` casts the model, so gradients travel in 16 bits; `autocast` (bf16) and `amp` (fp16, with its loss scaled)
compute in 16 bits while parameters and gradients stay float32."""

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
    Workload("resnet", "workloads.models.resnet:build_job", "convolutions, and BatchNorm buffers to broadcast"),
    Workload("wide-embedding", "workloads.models.embedding:build_wide_job", "one big gradient, ready last of all"),
    Workload("tied-embedding", "workloads.models.embedding:build_tied_job", "the same, shared with the head"),
    Workload("moe-unused", "workloads.models.moe:build_job", "experts without a gradient on some steps"),
    Workload("straggler", "workloads.models.straggler:build_job", "one late rank; options rank=1 and delay_ms=150"),
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

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of parameters and samples."""
        import torch

        return torch.bfloat16 if self.spec.precision == "bf16" else torch.float32

    def randn(self, *shape: int, keys: tuple[int, ...]) -> torch.Tensor:
        """Normal noise that depends on nothing but the seed and `keys`, such as rank and micro-step."""
        import torch

        return torch.randn(shape, generator=self._generator(keys)).to(self.device, self.dtype)

    def randint(self, high: int, *shape: int, keys: tuple[int, ...]) -> torch.Tensor:
        """Integers from 0 to below `high`, likewise."""
        import torch

        return torch.randint(high, shape, generator=self._generator(keys)).to(self.device)

    def _generator(self, keys: tuple[int, ...]) -> torch.Generator:
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
        weight: `weight(batch)`, the number of samples or tokens that `loss` is the mean of; give it where that
            number differs between ranks or micro-steps. None: every batch counts the same.
        max_gradient_norm: Where to clip the norm of all averaged gradients together; None never clips.
        leaves_parameters_unused: Whether a step may leave parameters without a gradient.
        scales_loss: Whether a gradient scaler guards float16 gradients against underflow.
        compiles: Whether to run the model through torch.compile.
    """

    model: nn.Module
    loss: Callable[[nn.Module, Any], torch.Tensor]
    batches: Callable[[int, int], Any] | Iterable[Any]
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    weight: Callable[[Any], float] | None = None
    max_gradient_norm: float | None = None
    leaves_parameters_unused: bool = False
    scales_loss: bool = False
    compiles: bool = False


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


def _check_file(module_name: str) -> None:
    if module_name.endswith(".py") and not Path(module_name).is_file():
        raise UsageError(f"There is no file {module_name} to take the workload from: check the path.")


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
