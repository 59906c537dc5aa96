"""What replay cannot evaluate, as a sentence: a setting that it knows nothing of must not look like today's."""

from __future__ import annotations

from advisor.bucketing import bucket_limits
from advisor.powersgd import find_powersgd_rank
from advisor.replay.buckets import WIRE_BYTES, plan_backward, sends_nothing
from advisor.replay.scenarios import Job
from advisor.schema import POWERSGD, DDPConfig

KNOWN_HOOKS = frozenset({"none", "allreduce", "noop", *WIRE_BYTES})
"""Hooks whose cost replay knows, or takes from its calibration."""
REACH = 2
"""Times the largest transfer that was timed: beyond, what a byte costs must be known."""
NOT_REPLAYED = ("backend", "wrapper", "batched_grad_copy", "skip_all_reduce_unused_params", "forward_sync_buffers")
"""Settings that change a step in ways that no profile of another setting tells."""


def find_gap(job: Job, config: DDPConfig) -> str | None:
    """Why a setting cannot be predicted, as a sentence; None where it can, as what was profiled always can."""
    if job.today == config:
        return None
    if hides_gradients(job):
        return "The hook that was profiled hides the gradients' sizes: profile without it, then ask what would change."
    if config.accumulation_steps < 1:
        return f"accumulation_steps={config.accumulation_steps} cannot be meant: a step has 1 micro-step or more."
    return _find_gap_beside_today(job, config) or _find_gap_of_hook(job, config) or _find_gap_of_link(job, config)


def hides_gradients(job: Job) -> bool:
    """Whether PowerSGD was profiled, and nobody tells what the all-reduces that were seen are made of."""
    return job.today is not None and find_powersgd_rank(job.today.comm_hook) is not None and not job.profile.shapes


def _find_gap_beside_today(job: Job, config: DDPConfig) -> str | None:
    """What stands between a setting and the one that was profiled, where that is known."""
    today = job.today
    if today is None:
        return None
    if config.world_size != today.world_size:
        return (
            f"A what-if keeps the {today.world_size} ranks of the run: "
            f"ddp-advisor forecast --ranks {config.world_size} predicts other numbers of them."
        )
    changed = [name for name in NOT_REPLAYED if getattr(config, name) != getattr(today, name)]
    if config.gradient_as_bucket_view != today.gradient_as_bucket_view and job.profile.device_type == "cuda":
        changed.append("gradient_as_bucket_view")  # its copies are part of what follows backward
    if changed:
        return f"What {changed[0]} does to this step is not replayed: measure it beside today's setting instead."
    if _may_split(job, config, today):
        return (
            "The sizes of the gradients are unknown, so today's buckets can be merged but not split: "
            "record with record_shapes=True."
        )
    return None


def _may_split(job: Job, config: DDPConfig, today: DDPConfig) -> bool:
    """Whether a limit that is lower than today's is exceeded by a bucket whose gradients nobody knows."""
    if job.profile.sizes_known:
        return False
    limits, limits_today = (
        bucket_limits(each.bucket_cap_mb, each.bucket_cap_mb_list, caps_first_bucket=each.caps_first_bucket)
        for each in (config, today)
    )
    largest = max(gradient.num_bytes for gradient in job.profile.slowest.gradients)
    return any(
        limits[min(place, len(limits) - 1)] < min(limits_today[min(place, len(limits_today) - 1)], largest)
        for place in range(max(len(limits), len(limits_today)))
    )


def _find_gap_of_hook(job: Job, config: DDPConfig) -> str | None:
    """What is missing to predict a hook: today's own is in the profile."""
    hook = config.comm_hook
    if hook in KNOWN_HOOKS or (job.today is not None and hook == job.today.comm_hook):
        return None
    if find_powersgd_rank(hook) is None:
        return f"What comm_hook {hook!r} costs cannot be predicted: measure it instead."
    if not job.profile.sizes_known:
        return f"What comm_hook {hook!r} sends follows from the gradients' shapes: record with record_shapes=True."
    if not job.profile.shapes or POWERSGD not in job.calibration.hook_ns_per_byte:
        return f"This report is too old to tell what comm_hook {hook!r} costs: analyze the traces again."
    return None


def _find_gap_of_link(job: Job, config: DDPConfig) -> str | None:
    """Small transfers may cost nothing a byte, as far as they tell; large ones do."""
    if sends_nothing(config) or job.model.segments[-1].beta_ns_per_byte.low > 0:
        return None
    largest = max((sample.num_bytes for sample in job.model.samples), default=0)
    if max(plan_backward(job, config).sizes, default=0) <= REACH * largest:
        return None
    return (
        f"Transfers of {largest / 1024:.3g} KiB at most were timed; what a byte of larger ones costs is open: "
        "give analyze a probe.json of these machines, or profile today's gradients without compression."
    )
