"""The buckets do not carry the gradients: some were never averaged, or some twice.

Elements are compared and not bytes, because a hook that casts halves the bytes. Where a hook compresses in another way
nothing can be said.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import NamedTuple

from advisor.alarms._base import find_mostly, find_rows, list_places, list_ranks, list_steps, list_updates
from advisor.schema import Alarm, Evidence, RunManifest
from advisor.updates import MicroStep, Update
from advisor.verdict import Analysis

ELEMENTWISE_HOOKS = frozenset({"none", "allreduce", "fp16", "bf16"})
SHARDING = frozenset({"all_to_all", "reduce_scatter"})
LEAST_SHARE = 0.5
"""Buckets with fewer of the gradients' elements are taken for compressed, where no manifest tells the hook."""
SURPLUS = 1.1
"""More than a metric that is averaged beside the gradients."""
MOST_WAYS = 10_000


class Sizes(NamedTuple):
    """Elements of all gradients of one backward, and of its buckets."""

    expected: int
    reduced: int


def check(analysis: Analysis) -> Alarm | None:
    """Raises the alarm where a synchronising backward reduces other elements than its gradients have.

    Silent where other collectives show that a part of the model is sharded and not replicated.
    """
    manifest = analysis.run.manifest
    if manifest is not None and manifest.ddp.comm_hook not in ELEMENTWISE_HOOKS:
        return None
    if any(c.kind in SHARDING for rank in analysis.run.ranks for c in rank.collectives):
        return None

    def compare(update: Update) -> Sizes | None:
        last = update.micro_steps[-1]
        if not last.buckets or any(bucket.num_elements < 0 for bucket in last.buckets):
            return None
        return compare_with_trace(last) or (compare_with_manifest(last, manifest) if manifest else None)

    wrong = find_mostly(list_updates(analysis), lambda update: compare(update) is not None)
    sizes = compare(wrong[0]) if wrong else None
    if sizes is None:
        return None
    places = list_places(wrong)
    lost = sizes.expected > sizes.reduced
    return Alarm(
        code="reduced_bytes_mismatch",
        severity="error" if lost else "warning",
        message=(
            f"{sizes.expected - sizes.reduced} of the gradients' {sizes.expected} elements are never averaged, so the "
            "replicas drift apart."
            if lost
            else f"{sizes.reduced} elements are averaged although the gradients have {sizes.expected}: some are sent "
            "twice."
        ),
        fix=(
            "Put every module that is trained under DDP, and wrap the model after its layers are unfrozen."
            if lost
            else "Wrap every module in DDP once."
        ),
        ranks=list_ranks(places),
        steps=list_steps(places),
        evidence=(
            Evidence(
                name="elements of the gradients",
                value=float(sizes.expected),
                unit="",
                table="steps",
                rows=find_rows(analysis.steps, places),
            ),
            Evidence(
                name="elements reduced",
                value=float(sizes.reduced),
                unit="",
                table="buckets",
                rows=find_rows(analysis.buckets, places),
            ),
        ),
    )


def compare_with_trace(micro_step: MicroStep) -> Sizes | None:
    """The sizes where gradients are left out, and all others fill the buckets exactly."""
    gradients = [gradient.num_elements for gradient in micro_step.gradients]
    buckets = [bucket.num_elements for bucket in micro_step.buckets]
    sizes = Sizes(sum(gradients), sum(buckets))
    if min(gradients, default=-1) < 0 or not LEAST_SHARE * sizes.expected <= sizes.reduced < sizes.expected:
        return None
    return sizes if find_left_out(gradients, buckets) else None


def compare_with_manifest(micro_step: MicroStep, manifest: RunManifest) -> Sizes | None:
    """The sizes where the buckets have neither the elements of the trainable parameters nor of the gradients seen."""
    sizes = Sizes(sum(prod(parameter.shape) for parameter in manifest.parameters), micro_step.num_reduced)
    seen = sum(gradient.num_elements for gradient in micro_step.gradients)
    if manifest.ddp.skip_all_reduce_unused_params or sizes.reduced == seen:
        return None
    return sizes if sizes.reduced < sizes.expected or sizes.reduced > SURPLUS * sizes.expected > 0 else None


def find_left_out(gradients: Sequence[int], buckets: Sequence[int]) -> tuple[int, ...]:
    """The gradients without which all others, in ready order, fill the buckets exactly; empty where there are none.

    Example: gradients of 4, 3, 2, 5 elements and buckets of 6 and 5: the second one (3) is left out.

    Args:
        gradients: Elements of each, in ready order.
        buckets: Elements of each, in launch order; in sum less than the gradients.
    """
    limits = list(accumulate(buckets))
    num_lost = sum(gradients) - limits[-1]
    ways: dict[int, tuple[int, ...]] = {0: ()}
    passed = 0
    for index, size in enumerate(gradients):
        longer: dict[int, tuple[int, ...]] = {}
        for lost, left_out in ways.items():
            filled = passed - lost
            place = bisect_right(limits, filled)
            if place < len(limits) and filled + size <= limits[place]:
                longer.setdefault(lost, left_out)
            if lost + size <= num_lost:
                longer.setdefault(lost + size, (*left_out, index))
        if len(longer) > MOST_WAYS:
            return ()
        ways, passed = longer, passed + size
    return ways.get(num_lost, ())
