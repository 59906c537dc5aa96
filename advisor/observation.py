"""All that the analysis keeps of one rank: no events, so that a thousand ranks fit and cross processes cheaply."""

from __future__ import annotations

from dataclasses import dataclass

from advisor.activity import Activity, measure_activities
from advisor.collectives import Collective, find_collectives
from advisor.exchange import StepExchange, find_exchanges
from advisor.intervals import Intervals, intersection
from advisor.parallelism import name_parallelism
from advisor.readers.names import DDP_FORWARD, UNUSED_PARAMETER_SEARCH
from advisor.schema import (
    Backend,
    DeviceType,
    Ladder,
    Parallelism,
    QualityNote,
    RunManifest,
    StepSource,
    Wrapper,
    marks,
)
from advisor.tables import Trace
from advisor.timeline import StepTimeline, build_timeline
from advisor.updates import Update, find_updates
from advisor.work import Comparison, compare_work, find_work


@dataclass(frozen=True)
class RankObservation:
    """What one rank's trace shows."""

    rank: int
    file: str
    host: str | None
    world_size: int | None
    backend: str
    device_type: DeviceType
    has_shapes: bool
    num_events: int
    num_communication_events: int
    parallelism: Parallelism
    wrapper: Wrapper
    searches_unused_parameters: bool
    step_source: StepSource
    steps: tuple[StepTimeline, ...]
    activity: Activity
    """Over the whole file."""
    step_activities: tuple[Activity, ...]
    communication: Intervals
    overlap: Intervals
    """Communication with compute beside it."""
    collectives: tuple[Collective, ...]
    exchanges: tuple[StepExchange, ...]
    updates: tuple[Update, ...]
    comparisons: tuple[Comparison, ...]


@dataclass(frozen=True)
class RunObservation:
    """All ranks of one run, by rank, with its manifest where the recorder left one."""

    source: str
    ranks: tuple[RankObservation, ...]
    manifest: RunManifest | None
    notes: tuple[QualityNote, ...]
    ladders: tuple[Ladder, ...] = ()
    """Collectives that were timed apart from the run, on its machines."""

    @property
    def told_world_size(self) -> int | None:
        """Ranks of the job, as the traces say; None where they do not."""
        return max((rank.world_size or 0 for rank in self.ranks), default=0) or None

    @property
    def world_size(self) -> int:
        """Ranks of the job: as the traces say, else as many as there are files, and two where one exchanges."""
        exchanges = any(rank.num_communication_events for rank in self.ranks)
        return self.told_world_size or max(len(self.ranks), 2 if exchanges else 1)

    @property
    def backend(self) -> Backend:
        """The backend that carries the gradients, as far as the product knows it."""
        word = self.ranks[0].backend
        return "gloo" if "gloo" in word else "nccl" if "nccl" in word else "unknown"

    @property
    def parallelism(self) -> Parallelism:
        """What any rank shows."""
        return next((rank.parallelism for rank in self.ranks if rank.parallelism != "unknown"), "unknown")

    @property
    def is_ddp(self) -> bool:
        """Whether the run shows DistributedDataParallel."""
        return self.parallelism == "ddp"


NO_RUN = RunObservation(source="", ranks=(), manifest=None, notes=())


def observe_rank(trace: Trace) -> RankObservation:
    """Reduces one rank's events to what the stages across ranks need."""
    timeline = build_timeline(trace)
    collectives = tuple(find_collectives(timeline))
    activity, step_activities = measure_activities(timeline)
    names = frozenset(trace.events["name"].cat.categories)
    return RankObservation(
        rank=trace.rank,
        file=trace.file,
        host=trace.host,
        world_size=trace.world_size,
        backend=trace.backend,
        device_type=trace.device_type,
        has_shapes=trace.has_shapes,
        num_events=len(trace.events),
        num_communication_events=int(timeline.communication_rows.sum()),
        parallelism=name_parallelism(names, collectives),
        wrapper=_name_wrapper(names),
        searches_unused_parameters=any(UNUSED_PARAMETER_SEARCH in name for name in names),
        step_source=timeline.step_source,
        steps=timeline.steps,
        activity=activity,
        step_activities=step_activities,
        communication=timeline.communication,
        overlap=intersection(timeline.communication, timeline.compute),
        collectives=collectives,
        exchanges=find_exchanges(timeline, collectives),
        updates=find_updates(timeline, collectives),
        comparisons=compare_work(find_work(timeline)),
    )


def _name_wrapper(names: frozenset[str]) -> Wrapper:
    if marks.FORWARD in names:
        return "bucketed"
    return "torch" if names & DDP_FORWARD else "unknown"
