"""The setting that was profiled: what a manifest says, else what the traces give away; and what they leave open."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from advisor.bucketing import MIB, assign_rebuilt, bucket_limits, find_distinct_caps, round_cap_mb
from advisor.collectives import count_bytes
from advisor.observation import RunObservation
from advisor.powersgd import find_powersgd_rank, list_rounds, split_bucket
from advisor.schedule import StepSchedule
from advisor.schema import DDPConfig, StepProfile
from advisor.step_profile import find_hook

ASSUMED_SETTINGS = {
    "world_size": "no more ranks took part than were recorded, and two at least (no file says how many)",
    "comm_hook": "no comm hook changed what was sent (nothing shows that it was the gradients as they are)",
    "bucket_cap_mb": "bucket_cap_mb was left unset (the gradients' sizes, which would tell it, are unknown)",
}
"""What a report takes for granted of the profiled setting, by the field that nothing tells."""


def identify_config(
    run: RunObservation, schedules: Sequence[StepSchedule], profile: StepProfile | None
) -> DDPConfig | None:
    """The profiled setting: what the manifest says, else what the buckets give away; None without DDP.

    What nothing tells is DDP's default, and named by `list_assumed`.
    """
    if run.manifest is not None:
        return run.manifest.ddp
    if not run.is_ddp:
        return None
    config = DDPConfig(
        world_size=run.world_size,
        backend=run.backend,
        wrapper=run.ranks[0].wrapper,
        accumulation_steps=profile.num_micro_steps if profile else 1,
        comm_hook=_find_hook(schedules) or "none",
        find_unused_parameters=run.ranks[0].searches_unused_parameters,
    )
    return config if profile is None or not schedules else identify_caps(config, schedules[0], profile)


def list_assumed(
    run: RunObservation, schedules: Sequence[StepSchedule], profile: StepProfile | None
) -> tuple[str, ...]:
    """The fields in `ASSUMED_SETTINGS` that neither a manifest nor the buckets tell; none without DDP."""
    if run.manifest is not None or not run.is_ddp:
        return ()
    knows_sizes = profile is not None and profile.sizes_known
    known = {
        "world_size": run.told_world_size is not None,
        "comm_hook": _find_hook(schedules) is not None,
        "bucket_cap_mb": knows_sizes,
    }
    return tuple(field for field, is_known in known.items() if not is_known)


def _find_hook(schedules: Sequence[StepSchedule]) -> str | None:
    """The hook on which all steps agree."""
    hooks = {find_hook(schedule.exchange) for schedule in schedules}
    return hooks.pop() if len(hooks) == 1 else None


def identify_caps(config: DDPConfig, schedule: StepSchedule, profile: StepProfile) -> DDPConfig:
    """`config` with the cap whose buckets are those observed; where no cap gives them, with their own sizes.

    It stays as it is where DDP's default gives them, where the gradients' sizes are unknown, or where the buckets of
    PowerSGD fit no cap. Today's rule is tried first, then the one before torch 2.4.
    """
    if not profile.sizes_known:
        return config
    gradients = profile.slowest.gradients
    sizes, keys = [g.num_bytes for g in gradients], [g.dtype for g in gradients]
    observed = [bucket.num_elements for bucket in schedule.buckets]
    elements = [g.num_bytes // count_bytes(1, g.dtype) for g in gradients]
    rank = find_powersgd_rank(config.comm_hook)

    def list_sent(buckets: list[list[int]]) -> list[float]:
        if rank is None:
            return [sum(elements[i] for i in bucket) for bucket in buckets]
        parts = [split_bucket([(elements[i], profile.shapes[i]) for i in bucket], rank) for bucket in buckets]
        rounds = list_rounds(parts, holds=config.backend != "gloo")
        return [each.num_bytes for each in rounds if each.num_bytes]

    def gives(cap_mb: float | None, caps_first_bucket: bool = True) -> bool:
        limits = bucket_limits(cap_mb, None, caps_first_bucket=caps_first_bucket)
        buckets = assign_rebuilt(sizes, keys, limits, range(len(sizes)))
        return list_sent(buckets) == observed

    if gives(None):
        return config
    for caps_first_bucket in (True, False):
        for low, high in find_distinct_caps(sizes, keys, caps_first_bucket=caps_first_bucket):
            cap_mb = round_cap_mb(low, high)
            if gives(cap_mb, caps_first_bucket):
                return replace(config, bucket_cap_mb=cap_mb, caps_first_bucket=caps_first_bucket)
    if rank is not None:
        return config
    # A cap counts gradients, and a hook may have cast them to fewer bytes.
    width = sum(sizes) / sum(bucket.num_bytes for bucket in schedule.buckets)
    return replace(config, bucket_cap_mb_list=tuple(width * bucket.num_bytes / MIB for bucket in schedule.buckets))
