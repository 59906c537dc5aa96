"""Findings about what the events tell: kernels, collectives, their sizes, and DDP itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from advisor.alarms import harmful_environment
from advisor.collectives import Collective
from advisor.doctor.examination import RankExamination, RunExamination
from advisor.schema import Evidence, Finding, Parallelism

OTHERS: dict[Parallelism, str] = {
    "fsdp": "FSDP",
    "deepspeed": "DeepSpeed",
    "tensor_parallel": "tensor parallelism",
    "hand_written": "gradients that are reduced by hand",
}
UNSPLIT = "Buckets can be merged but not split, so no cap below today's can be tried."


def no_device_activity(run: RunExamination) -> Finding | None:
    """A job on GPUs of which no kernel was recorded."""
    ranks = [rank.rank for rank in run.ranks if rank.uses_gpu and rank.observation.device_type == "cpu"]
    if not ranks:
        return None
    return Finding(
        code="no_device_activity",
        severity="error" if len(ranks) == len(run.ranks) else "warning",
        message="The job uses GPUs, but no kernel was recorded.",
        cost="Neither computation nor communication can be seen: both happen on the device.",
        fix="Record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA].",
        ranks=tuple(ranks),
        evidence=(Evidence(name="kernels", value=0, unit=""),),
    )


def no_host_activity(run: RunExamination) -> Finding | None:
    """Kernels without the host that launched them."""
    ranks = [rank.rank for rank in run.ranks if rank.observation.device_type == "cuda" and not rank.has_host_operators]
    if not ranks:
        return None
    return Finding(
        code="no_host_activity",
        severity="error",
        message="No operators of the host were recorded.",
        cost="Steps, phases and gradients are told by them, so only kernels remain.",
        fix="Record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA].",
        ranks=tuple(ranks),
        evidence=(Evidence(name="operators", value=0, unit=""),),
    )


def no_ddp(run: RunExamination) -> Finding | None:
    """Nothing of DistributedDataParallel in a job that does communicate."""
    if run.is_ddp or not _list_collectives(run):
        return None
    return Finding(
        code="no_ddp",
        severity="warning",
        message=f"No DistributedDataParallel in it{_name_other(run)}. What communicates is {_name_kinds(run)}.",
        cost="Steps, overlap and collectives are shown; advice on DDP's settings does not apply.",
        fix="If the job does use DDP, record whole steps, and call the wrapped model rather than its .module.",
        evidence=_count_kinds(run),
    )


def no_communication(run: RunExamination) -> Finding | None:
    """Several ranks and not one collective."""
    if (run.world_size or 0) < 2 or _list_collectives(run) or no_device_activity(run):
        return None
    return Finding(
        code="no_communication",
        severity="error",
        message=f"{run.world_size} ranks took part, and not one collective was recorded.",
        cost="What communication costs is the question, so there is no answer.",
        fix="Record whole optimizer steps that synchronise (not inside no_sync), and call the wrapped model rather "
        "than its .module.",
        evidence=(Evidence(name="collectives", value=0, unit=""),),
    )


def no_exchange(run: RunExamination) -> Finding | None:
    """DDP and communication, but no gradient reduced inside a step."""
    has_steps = any(rank.observation.steps for rank in run.ranks)
    if not run.is_ddp or not has_steps or run.has_exchange or not _list_collectives(run):
        return None
    return Finding(
        code="no_exchange",
        severity="warning",
        message="DDP is there, but no step holds a backward together with the all-reduces of its gradients. "
        f"What communicates is {_name_kinds(run)}.",
        cost="Steps, overlap and waiting are shown; without buckets there is no advice on DDP's settings.",
        fix="Record whole optimizer steps that synchronise, with prof.step() after each.",
        evidence=_count_kinds(run),
    )


def no_collective_sizes(run: RunExamination) -> Finding | None:
    """Buckets of unknown size."""
    sizes = [size for rank in run.ranks for size in _list_bucket_bytes(rank)]
    unknown = sum(size < 0 for size in sizes)
    if not unknown:
        return None
    return Finding(
        code="no_collective_sizes",
        severity="warning",
        message=f"{unknown} of {len(sizes)} all-reduces of gradients do not tell their size.",
        cost="Time over bytes cannot be fitted, so nothing is replayed and no setting is advised.",
        fix="Record with record_shapes=True."
        + (" From torch 2.2 on, NCCL's collectives tell their size without it." if run.uses_gpu else ""),
        ranks=tuple(rank.rank for rank in run.ranks if min(_list_bucket_bytes(rank), default=0) < 0),
        evidence=(
            Evidence(name="without a size", value=unknown, unit="all-reduces"),
            Evidence(name="all-reduces of gradients", value=len(sizes), unit="all-reduces"),
        ),
    )


def no_shapes(run: RunExamination) -> Finding | None:
    """Gradients of unknown size, since no shapes were recorded."""
    ranks = [rank for rank in _list_unmatched(run) if not rank.observation.has_shapes]
    if not ranks:
        return None
    return Finding(
        code="no_shapes",
        severity="warning",
        message="No shapes were recorded, so the sizes of the gradients are unknown.",
        cost=UNSPLIT,
        fix="Record with record_shapes=True.",
        ranks=tuple(rank.rank for rank in ranks),
        evidence=_count_gradients(ranks),
    )


def unmatched_gradients(run: RunExamination) -> Finding | None:
    """Gradients that are not what the buckets carry, although shapes were recorded."""
    ranks = [rank for rank in _list_unmatched(run) if rank.observation.has_shapes]
    if not ranks:
        return None
    seen, sized = _count_gradients(ranks)
    return Finding(
        code="unmatched_gradients",
        severity="warning",
        message="Shapes were recorded, but the gradients do not add up to the buckets: "
        f"{sized.value:.0f} of {seen.value:.0f} seen in a step tell their size.",
        cost=UNSPLIT,
        fix="Record whole steps with every event in them. A sparse gradient tells no size, whatever is recorded.",
        ranks=tuple(rank.rank for rank in ranks),
        evidence=(seen, sized),
    )


def disturbing_environment(run: RunExamination) -> Finding | None:
    """Settings under which a job is not what it is without them."""
    found = harmful_environment.list_harmful(run.manifest) if run.manifest else []
    if not found:
        return None
    return Finding(
        code="harmful_environment",
        severity="warning",
        message=f"The environment disturbs the job: {harmful_environment.say_harm(found)}.",
        cost="What is measured is not the job that runs without it.",
        fix="Unset it, or give fewer threads where those are too many, and record again.",
        evidence=tuple(Evidence(name=f"{setting.variable}={value}", value=1, unit="") for setting, value in found),
    )


def _list_collectives(run: RunExamination) -> list[Collective]:
    return [collective for rank in run.ranks for collective in rank.observation.collectives]


def _count_kinds(run: RunExamination) -> tuple[Evidence, ...]:
    kinds = Counter(collective.kind or "unknown" for collective in _list_collectives(run))
    return tuple(Evidence(name=kind, value=number, unit="") for kind, number in kinds.most_common())


def _name_kinds(run: RunExamination) -> str:
    return ", ".join(f"{kind.value:.0f} {kind.name}" for kind in _count_kinds(run))


def _name_other(run: RunExamination) -> str:
    found = [OTHERS[parallelism] for rank in run.ranks if (parallelism := rank.observation.parallelism) in OTHERS]
    return f", but {found[0]}" if found else ": no forward of DDP, no reducer"


def _list_bucket_bytes(rank: RankExamination) -> Iterator[int]:
    for exchange in rank.observation.exchanges:
        yield from (bucket.collective.num_bytes for bucket in exchange.buckets)


def _list_unmatched(run: RunExamination) -> list[RankExamination]:
    return [rank for rank in run.ranks if rank.observation.exchanges and not rank.gradients_known]


def _count_gradients(ranks: Sequence[RankExamination]) -> tuple[Evidence, Evidence]:
    """Of the step that has most: how many are seen, and how many tell their size."""
    gradients = max((e.gradients for rank in ranks for e in rank.observation.exchanges), key=len)
    sized = sum(gradient.num_bytes >= 0 for gradient in gradients)
    return (
        Evidence(name="gradients in a step", value=len(gradients), unit=""),
        Evidence(name="gradients of known size", value=sized, unit=""),
    )
