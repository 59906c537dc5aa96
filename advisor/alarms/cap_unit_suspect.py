"""A bucket cap that exceeds all gradients by an absurd factor: bytes or elements were given where MiB are meant."""

from __future__ import annotations

from collections import Counter

from advisor.alarms._base import find_rows, list_all_places, list_ranks, list_steps
from advisor.bucketing import MIB
from advisor.schema import Alarm, Evidence
from advisor.verdict import Analysis

LEAST_CAP_MB = 100_000
"""No rank has so many MiB of gradients."""
LEAST_FACTOR = 1000


def check(analysis: Analysis) -> Alarm | None:
    """Raises the alarm where the cap is at least `LEAST_CAP_MB` and `LEAST_FACTOR` times the gradients.

    Only a manifest tells the cap.
    """
    config = analysis.run.manifest.ddp if analysis.run.manifest else None
    if config is None or not analysis.is_ddp or analysis.world_size == 1:
        return None
    cap = max(config.bucket_cap_mb_list or (config.bucket_cap_mb or 0.0,))
    num_bytes = measure_gradients(analysis)
    if num_bytes is None or cap < LEAST_CAP_MB or cap * MIB < LEAST_FACTOR * num_bytes:
        return None
    places = list_all_places(analysis)
    rows = find_rows(analysis.buckets, places)
    return Alarm(
        code="cap_unit_suspect",
        severity="warning",
        message=(
            f"A bucket cap of {cap:.12g} MiB is far more than all gradients ({num_bytes / MIB:.3g} MiB), so one "
            "all-reduce runs after backward: the cap seems to be in bytes or elements."
        ),
        fix="Give bucket_cap_mb in MiB, or leave it unset.",
        code_fix=f"DistributedDataParallel(model, bucket_cap_mb={max(1, round(cap / MIB))})",
        ranks=list_ranks(places),
        steps=list_steps(places),
        evidence=(
            Evidence(name="bucket cap", value=cap * MIB, unit="bytes", table="config"),
            Evidence(name="gradients", value=float(num_bytes), unit="bytes", table="buckets", rows=rows),
        ),
    )


def measure_gradients(analysis: Analysis) -> int | None:
    """Bytes of all gradients: of the manifest's parameters, else of the buckets of a step, where all tell theirs."""
    manifest = analysis.run.manifest
    if manifest and manifest.parameters:
        return sum(parameter.num_bytes for parameter in manifest.parameters)
    sent: Counter[tuple[int, int]] = Counter()
    for bucket in analysis.buckets:
        if bucket.num_bytes < 0:
            return None
        sent[bucket.rank, bucket.step] += bucket.num_bytes
    return max(sent.values(), default=None)
