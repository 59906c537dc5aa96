"""A change of settings as arguments of DistributedDataParallel, each with what one has to know about it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from advisor.errors import UsageError
from advisor.schema import DDPConfig
from advisor.schema.run import NOT_WRAPPER_ARGUMENTS

WRAPPER_ARGUMENTS = tuple(name for name in DDPConfig.__struct_fields__ if name not in NOT_WRAPPER_ARGUMENTS)
CHANGEABLE = ("comm_hook", "accumulation_steps", *WRAPPER_ARGUMENTS)
HOOK_NAME = re.compile(r"none|allreduce|fp16|bf16|noop|powersgd:[1-9][0-9]*")

NOTES: dict[tuple[str, bool], str] = {
    ("bucket_cap_mb", True): "in MiB; from torch 2.4 on the first bucket takes it too",
    ("bucket_cap_mb_list", True): "in MiB, in launch order, the last one repeats; from torch 2.12 on",
    ("gradient_as_bucket_view", True): "gradients are views of the buckets: never detach_() them",
    ("batched_grad_copy", True): "from torch 2.12 on",
    ("static_graph", True): "only if every step uses the same parameters, without control flow that depends on data",
    ("find_unused_parameters", False): "only if every parameter gets a gradient in every step, else DDP stops",
    ("find_unused_parameters", True): "buckets are not rebuilt then, and each step has one more small all-reduce",
    ("skip_all_reduce_unused_params", True): "only if the same parameters are unused on every rank in every step",
    ("forward_sync_buffers", False): "ranks then keep buffers of their own; before torch 2.13 it is broadcast_buffers",
    ("forward_sync_buffers", True): "before torch 2.13 it is broadcast_buffers",
}
"""What to know about a field that is on (or given), or off."""


@dataclass(frozen=True)
class Argument:
    """One argument of a call; without a value it is only a comment about leaving it out."""

    name: str
    value: str | None
    comment: str = ""


@dataclass(frozen=True)
class Change:
    """What differs, and every setting before and after."""

    fields: tuple[str, ...]
    today: DDPConfig
    target: DDPConfig

    @property
    def changes_wrapper(self) -> bool:
        """Whether an argument of DistributedDataParallel differs."""
        return any(name in WRAPPER_ARGUMENTS for name in self.fields)

    @property
    def changes_hook(self) -> bool:
        """Whether the comm hook differs."""
        return "comm_hook" in self.fields

    @property
    def changes_wrapping(self) -> bool:
        """Whether a framework that wraps the model has to be told anything else about it."""
        return self.changes_wrapper or self.changes_hook or self.synchronises_first

    @property
    def accumulates(self) -> bool:
        """Whether a framework that runs the loop has to be told the number of micro-steps."""
        return self.target.accumulation_steps > 1 or self.changes_accumulation

    @property
    def changes_accumulation(self) -> bool:
        """Whether the number of micro-steps differs, or how they must be run."""
        return "accumulation_steps" in self.fields or (self.synchronises_first and "static_graph" in self.fields)

    @property
    def synchronises_first(self) -> bool:
        """Whether the first micro-step must synchronise: torch fails on a static graph otherwise (pytorch#143580)."""
        return self.target.static_graph and self.target.accumulation_steps > 1

    @property
    def on_gpus(self) -> bool:
        """Whether the job is known to use NCCL, for which alone torch's own hooks are all safe."""
        return self.target.backend == "nccl"


def plan_change(change: Mapping[str, Any], config: DDPConfig) -> Change:
    """Checks a change and applies it to today's settings.

    Raises:
        UsageError: It names what is no setting of DDP, or gives it a value of another kind.
    """
    unknown = [name for name in change if name not in CHANGEABLE]
    if unknown:
        raise UsageError(f"{unknown[0]} is nothing that code can change: choose of {', '.join(CHANGEABLE)}.")
    values = msgspec.to_builtins(config) | msgspec.to_builtins(dict(change))
    try:
        target = msgspec.convert(values, DDPConfig)
    except msgspec.ValidationError as error:
        raise UsageError(f"The change {dict(change)} does not fit DDP's settings: {error}.") from error
    if not HOOK_NAME.fullmatch(target.comm_hook):
        raise UsageError(f"There is no comm hook {target.comm_hook!r} to write code for.")
    if target.accumulation_steps < 1:
        raise UsageError(f"{target.accumulation_steps} micro-steps a step cannot be meant: give 1 or more.")
    return Change(tuple(name for name in CHANGEABLE if name in change), config, target)


def list_arguments(change: Change) -> list[Argument]:
    """DDP's arguments after the change: those that differ from today's, and those that differ from DDP's defaults."""
    target = change.target
    defaults = DDPConfig(world_size=target.world_size, backend=target.backend, wrapper=target.wrapper)
    arguments = []
    for name in WRAPPER_ARGUMENTS:
        value = getattr(target, name)
        is_overruled = name == "bucket_cap_mb" and target.bucket_cap_mb_list is not None
        if name in change.fields or (value != getattr(defaults, name) and not is_overruled):
            arguments.append(Argument(name, None if value is None else write_value(value), explain(name, change)))
    return arguments


def list_removals(change: Change) -> list[Argument]:
    """A comment for a comm hook that is to go; nothing else."""
    if change.changes_hook and change.target.comm_hook == "none":
        return [
            Argument("comm_hook", None, f"no comm_hook (today {change.today.comm_hook}): leave its registration out")
        ]
    return []


def explain(name: str, change: Change) -> str:
    """What it was and what to know, as a comment; nothing for an argument that stays."""
    if name not in change.fields:
        return ""
    value, today = getattr(change.target, name), write_value(getattr(change.today, name))
    if name == "bucket_cap_mb" and value is None:
        return f"no bucket_cap_mb (today {today}): unset is 1 MiB, then 25 MiB, which 25 is not"
    if value is None:
        return f"no {name} (today {today})"
    said = [f"today {today}", NOTES.get((name, value is not False), "")]
    if name == "bucket_cap_mb" and change.target.bucket_cap_mb_list is not None:
        said.append("the list overrules it")
    if name == "bucket_cap_mb_list" and change.target.find_unused_parameters and not change.target.static_graph:
        said.append("as find_unused_parameters keeps buckets from being rebuilt, it counts from the last launched one")
    return "; ".join(filter(None, said))


def say_accumulation(change: Change, framework_does: str = "") -> str:
    """What another number of micro-steps means for training, and what the framework does with several."""
    steps, today = change.target.accumulation_steps, change.today.accumulation_steps
    differs = (
        f"today {today}; as a step takes more or fewer micro-batches then, change their size or the learning rate "
        "by as much to train as today"
    )
    return "; ".join(filter(None, (differs if steps != today else "", framework_does if steps > 1 else "")))


def write_value(value: Any) -> str:
    """A setting as Python: 8.0 is `8`, (1.0, 2.5) is `[1, 2.5]`, an unset one is `unset`."""
    if value is None:
        return "unset"
    if isinstance(value, tuple):
        return f"[{', '.join(map(write_value, value))}]"
    if isinstance(value, float) and value.is_integer():
        return f"{value:.0f}"
    return repr(value)
