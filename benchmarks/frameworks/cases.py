"""The changes to try, and what DDP must have received of each."""

from __future__ import annotations

from typing import Any

import msgspec

from advisor.bucketing import bucket_limits
from advisor.frameworks import FRAMEWORKS, write_code
from advisor.frameworks.change import WRAPPER_ARGUMENTS, plan_change
from advisor.schema import DDPConfig, Framework, Struct

NUM_MICRO_STEPS = 6
"""The first ones, of which it is looked at whether they synchronise."""

PLAIN = DDPConfig(world_size=2, backend="gloo", wrapper="torch")
BUSY = msgspec.structs.replace(PLAIN, bucket_cap_mb=8.0, find_unused_parameters=True, comm_hook="fp16")
ON_GPUS = msgspec.structs.replace(PLAIN, backend="nccl")

CHANGES: dict[str, tuple[DDPConfig, dict[str, Any]]] = {
    "a cap of a fraction": (PLAIN, {"bucket_cap_mb": 0.01}),
    "a cap of 25": (PLAIN, {"bucket_cap_mb": 25.0}),
    "cap unset, no search, no hook": (
        BUSY,
        {"bucket_cap_mb": None, "find_unused_parameters": False, "comm_hook": "none"},
    ),
    "a list of caps": (PLAIN, {"bucket_cap_mb_list": (0.001, 0.01)}),
    "views": (PLAIN, {"gradient_as_bucket_view": True}),
    "batched copies": (PLAIN, {"batched_grad_copy": True}),
    "search for unused parameters": (PLAIN, {"find_unused_parameters": True}),
    "static graph": (PLAIN, {"static_graph": True}),
    "buffers of their own": (PLAIN, {"forward_sync_buffers": False}),
    "accumulation": (PLAIN, {"accumulation_steps": 3}),
    "accumulation with a static graph": (PLAIN, {"accumulation_steps": 3, "static_graph": True}),
    "fp16": (PLAIN, {"comm_hook": "fp16"}),
    "bf16": (PLAIN, {"comm_hook": "bf16", "bucket_cap_mb": 4.0}),
    "our PowerSGD": (PLAIN, {"comm_hook": "powersgd:2"}),
    "torch's PowerSGD and accumulation": (ON_GPUS, {"comm_hook": "powersgd:2", "accumulation_steps": 3}),
}
HOOKS = {"none": "", "fp16": "fp16_compress_hook", "bf16": "send_bf16", "powersgd:2": "powersgd_hook"}
NEEDS_A_GPU = {("mmengine", "torch's PowerSGD and accumulation")}
"""MMEngine's code for GPUs leaves device_ids to MMEngine, which DDP refuses on a CPU."""


class Received(Struct, frozen=True, kw_only=True):
    """What a wrapped model was given, and what it did."""

    settings: dict[str, bool]
    limits: tuple[int, ...]
    """Of the buckets, in bytes."""
    hook: str
    synchronised: tuple[bool, ...]
    """For the first forwards, whether their backward was to synchronise."""


class Case(Struct, frozen=True, kw_only=True):
    """One change for one framework."""

    name: str
    code: str
    expected: Received


def list_cases(framework: Framework) -> list[Case]:
    """Every change as code for a framework, and what has to come of it."""
    return [
        Case(name=name, code=write_code(change, today, framework), expected=expect(today, change, framework))
        for name, (today, change) in CHANGES.items()
        if (framework, name) not in NEEDS_A_GPU
    ]


def expect(today: DDPConfig, change: dict[str, Any], framework: Framework) -> Received:
    """What DDP must have received."""
    plan = plan_change(change, today)
    target = plan.target
    # Fabric wraps in code of the reader's own where only the loop changes, and Trainer searches unless it is told.
    hook = "powerSGD_hook" if today is ON_GPUS else HOOKS[target.comm_hook]
    settings = {name: getattr(target, name) for name in WRAPPER_ARGUMENTS if not name.startswith("bucket_cap")}
    if framework == "hf-trainer" and not plan.changes_wrapper and not plan.changes_hook:
        settings["find_unused_parameters"] = True
    if framework == "mmengine" and not plan.changes_wrapping:
        settings["forward_sync_buffers"] = False
    steps = target.accumulation_steps
    return Received(
        settings=settings,
        limits=bucket_limits(target.bucket_cap_mb, target.bucket_cap_mb_list),
        hook=hook,
        synchronised=tuple(
            number % steps == 0 or (target.static_graph and number == 1) for number in range(1, NUM_MICRO_STEPS + 1)
        ),
    )


OTHERS: tuple[Framework, ...] = tuple(name for name in FRAMEWORKS if name != "torch")
