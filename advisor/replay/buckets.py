"""What a setting makes of the gradients: their buckets, and the bytes of each on the wire.

Buckets are filled in the order in which gradients become ready, because DDP rebuilds them so after its first steps.
With `find_unused_parameters`, and without a static graph, it never does: then they are filled in registration order,
the last ones are launched first, and a bucket waits for whichever of its gradients is ready last. Each such exchange
ends with a mark of the parameters that were used.

**Source**: torch 2.13, torch/csrc/distributed/c10d/reducer.hpp (`should_rebuild_buckets`) and reducer.cpp
(`all_reduce_local_used_map`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from advisor.bucketing import assign_first, assign_rebuilt, bucket_limits
from advisor.replay.backward import Backward
from advisor.replay.scenarios import Floats, Job
from advisor.schema import DDPConfig, GradientReady, StepProfile

WIRE_BYTES: Mapping[str, int] = {"fp16": 2, "bf16": 2}
"""Bytes an element on the wire under a hook that casts."""
KNOWN_HOOKS = frozenset({"none", "allreduce", "noop", *WIRE_BYTES})
"""Hooks whose cost replay knows, or takes from its calibration."""
MARK_BYTES = 4
"""Of each parameter in the mark of those that were used."""


def plan_backward(job: Job, config: DDPConfig) -> Backward:
    """The synchronising backward under `config`, as the slowest rank computes it."""
    slowest = job.profile.slowest
    gradients = slowest.gradients
    buckets = bucket_gradients(job.profile, config)
    work = [max(gradients[i].ready_device_ns for i in bucket) for bucket in buckets]
    sizes = [sum(count_wire_bytes(gradients[i], config) for i in bucket) for bucket in buckets]
    held = [float(sum(gradients[i].num_bytes for i in bucket)) for bucket in buckets]
    if marks_used(config):
        work, sizes, held = [*work, work[-1]], [*sizes, MARK_BYTES * len(gradients)], [*held, 0.0]
    ready = np.maximum.accumulate(work)
    times, idles = np.array([(gradient.ready_device_ns, gradient.idle_ns) for gradient in gradients]).T
    idle = idles[np.searchsorted(times, ready, side="right") - 1]
    busy = np.maximum.accumulate(np.append(ready - idle, slowest.backward_ns - idle[-1]))
    return Backward(
        work=busy[:-1].tolist(),
        sizes=sizes,
        backward_ns=float(busy[-1]),
        concurrency=job.calibration.concurrency,
        not_before=_find_begins(ready, busy) if idle.any() else (),
        gradient_bytes=held,
        copies_out=not config.gradient_as_bucket_view,
        hook=config.comm_hook,
        casts_before=job.today is None or job.today.comm_hook != config.comm_hook,
    )


def _find_begins(ready: Floats, busy: Floats) -> list[float]:
    """When the computation towards each bucket may begin: a late host holds up what is launched next."""
    ends = np.append(ready, ready[-1] + busy[-1] - busy[-2])
    return [float(begin) for begin in ends - np.diff(busy, prepend=0.0)]


def bucket_gradients(profile: StepProfile, config: DDPConfig) -> list[list[int]]:
    """The buckets of `config`, as indices into the gradients in ready order, in launch order."""
    gradients = profile.slowest.gradients
    limits = bucket_limits(config.bucket_cap_mb, config.bucket_cap_mb_list, caps_first_bucket=config.caps_first_bucket)
    if rebuilds(config):
        sizes, keys = [g.num_bytes for g in gradients], [g.dtype for g in gradients]
        return assign_rebuilt(sizes, keys, limits, range(len(gradients)))
    order = list_registered(profile)
    sizes, keys = [gradients[i].num_bytes for i in order], [gradients[i].dtype for i in order]
    return [[order[place] for place in bucket] for bucket in assign_first(sizes, keys, limits)]


def list_registered(profile: StepProfile) -> list[int]:
    """The gradients in registration order: as a manifest told, else in reverse of their ready order."""
    return list(profile.registered) or list(range(len(profile.slowest.gradients)))[::-1]


def rebuilds(config: DDPConfig) -> bool:
    """Whether DDP fills its buckets again in the order in which gradients became ready."""
    return config.static_graph or not config.find_unused_parameters


def marks_used(config: DDPConfig) -> bool:
    """Whether every exchange ends with an all-reduce of which parameters were used."""
    return config.find_unused_parameters and not config.static_graph and not sends_nothing(config)


def sends_nothing(config: DDPConfig) -> bool:
    """Whether nothing goes over the wire: one rank alone, or the hook that only measures the ceiling."""
    return config.world_size == 1 or config.comm_hook == "noop"


def knows_hook(job: Job, config: DDPConfig) -> bool:
    """Whether the hook's cost can be told: today's own is in the profile."""
    return config.comm_hook in KNOWN_HOOKS or (job.today is not None and config.comm_hook == job.today.comm_hook)


def count_wire_bytes(gradient: GradientReady, config: DDPConfig) -> float:
    """Bytes of a gradient on the wire, after a hook that casts."""
    width = WIRE_BYTES.get(config.comm_hook)
    own = {"float16": 2, "bfloat16": 2, "float64": 8}.get(gradient.dtype, 4)
    return gradient.num_bytes if width is None else gradient.num_bytes * width / own
