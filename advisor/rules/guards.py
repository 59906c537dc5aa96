"""What must not be proposed, because it hangs, fails or does nothing: one row a trap, by the field it would change.

A field without a row here is never changed by a rule; one with an empty row is safe as far as anyone knows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from advisor.replay import rebuilds
from advisor.schema import DDPConfig, RunManifest

Version = tuple[int, int]
BUCKET_LIST_SINCE: Version = (2, 12)
BATCHED_COPY_SINCE: Version = (2, 12)


class Guard(NamedTuple):
    """One trap: it shuts where `stops` holds for the new settings, or where torch is not known to be new enough."""

    outcome: Literal["hangs", "fails", "asserts", "has no effect"]
    why: str
    source: str
    stops: Callable[[DDPConfig], bool] = lambda _: False
    since: Version | None = None


def _hook(pattern: str) -> Callable[[DDPConfig], bool]:
    """Whether the hook is such a one and the backend is not known to be NCCL."""
    return lambda config: re.fullmatch(pattern, config.comm_hook) is not None and config.backend != "nccl"


GUARDS: Mapping[str, tuple[Guard, ...]] = {
    "bucket_cap_mb": (),
    "bucket_cap_mb_list": (
        Guard("fails", "no such argument", "torch/nn/parallel/distributed.py, torch 2.11", since=BUCKET_LIST_SINCE),
        Guard(
            "has no effect",
            "without a rebuild its limits count from the last-launched bucket",
            "torch/csrc/distributed/c10d/reducer.hpp: should_rebuild_buckets",
            lambda config: not rebuilds(config),
        ),
    ),
    "comm_hook": (
        Guard("fails", "TypeError when it is registered", "torch/nn/parallel/distributed.py", _hook("bf16")),
        Guard("hangs", "two buckets wait for gloo's two threads", "pytorch#48478", _hook("powersgd:.*")),
        Guard(
            "has no effect",
            "averages nothing: it only measures the ceiling",
            "torch/distributed/algorithms/ddp_comm_hooks/debugging_hooks.py",
            lambda config: config.comm_hook == "noop",
        ),
    ),
    "accumulation_steps": (),
    "gradient_as_bucket_view": (),
    "batched_grad_copy": (
        Guard("fails", "no such argument", "torch/nn/parallel/distributed.py, torch 2.11", since=BATCHED_COPY_SINCE),
    ),
    "static_graph": (
        Guard(
            "asserts",
            "the first backward must not be inside no_sync",
            "pytorch#143580",
            lambda config: config.static_graph and config.accumulation_steps > 1,
        ),
    ),
    "find_unused_parameters": (),
    "forward_sync_buffers": (),
}
EVERY_CHANGE: tuple[Guard, ...] = (*GUARDS["static_graph"], *GUARDS["comm_hook"])
"""Traps that a change of another field may step into, such as more micro-steps under a static graph."""


def find_guard(today: DDPConfig, change: Mapping[str, Any], torch: Version | None) -> Guard | None:
    """The first trap in the way of a change; None where it may be proposed.

    Args:
        today: The profiled setting.
        change: The fields that differ; each must have a row.
        torch: torch's version, None where nobody tells it.
    """
    target = apply_change(today, change)
    for guard in (*(guard for name in change for guard in GUARDS[name]), *EVERY_CHANGE):
        if guard.stops(target) or (guard.since is not None and (torch is None or torch < guard.since)):
            return guard
    return None


def apply_change(config: DDPConfig, change: Mapping[str, Any]) -> DDPConfig:
    """`config` with the fields of `change`."""
    return msgspec.convert(msgspec.to_builtins(config) | msgspec.to_builtins(dict(change)), DDPConfig)


def find_torch_version(manifest: RunManifest | None) -> Version | None:
    """Major and minor version of the torch that trained: `2.13.0+cpu` is (2, 13); None where no manifest tells."""
    found = re.match(r"(\d{1,9})\.(\d{1,9})", manifest.versions.get("torch", "")) if manifest else None
    return (int(found[1]), int(found[2])) if found else None
