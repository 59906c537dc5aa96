"""What is asked of a recording: one rank after the other, so that no events are kept."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from advisor.collectives import Collective
from advisor.observation import RankObservation, observe_rank
from advisor.readers.damage import find_damaged_steps, list_steps
from advisor.readers.names import GPU_OPERATOR, NCCL_SPAN, OPERATOR, OPTIMIZER_STEP, RUNTIME, is_floating
from advisor.readers.ranks import find_process, guess_rank
from advisor.readers.run_files import RankFiles
from advisor.schema import RunManifest
from advisor.step_profile import knows_gradients
from advisor.tables import Recording, Trace, match_names


@dataclass(frozen=True)
class RecordedStep:
    """One step as it was recorded, whether or not the analysis uses it."""

    number: int
    num_updates: int
    """Calls of the optimizer."""
    reduced: tuple[int, ...]
    """Elements of the all-reduces that may be buckets, in launch order; -1 where unknown."""


@dataclass(frozen=True)
class RankExamination:
    """What one rank's files hold."""

    observation: RankObservation
    files: tuple[str, ...]
    recording: Recording
    steps: tuple[RecordedStep, ...]
    clock_ns: int
    has_host_operators: bool
    uses_gpu: bool
    """Whether anything in it only happens where there is a GPU."""
    is_damaged: bool
    damaged_steps: tuple[int, ...]
    """Their numbers, as far as the profiler marked them."""
    gradients_known: bool
    """Whether the gradients' own sizes add up to the buckets, so that they can be put into others."""

    @property
    def rank(self) -> int:
        """Its number."""
        return self.observation.rank

    @property
    def name_tells_rank(self) -> bool:
        """Whether ranks that write to such names do not overwrite each other."""
        places = [name.rpartition("/") for name in self.files]
        return any(find_process(name) or guess_rank(name, folder) is not None for folder, _, name in places)


@dataclass(frozen=True)
class RunExamination:
    """What the files of one run hold."""

    source: str
    ranks: tuple[RankExamination, ...]
    """By rank; empty where nothing could be read."""
    manifest: RunManifest | None
    left_out: tuple[str, ...]
    """A sentence for each file that could not be read."""
    num_unranked: int
    """Files that tell no rank."""
    num_mixed: int
    """Files into which several ranks wrote; they are among those that are left out."""

    @property
    def world_size(self) -> int | None:
        """As the files say; None where none does."""
        return max((rank.observation.world_size or 0 for rank in self.ranks), default=0) or None

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Those below the world size that are not there."""
        return tuple(sorted(set(range(self.world_size or 0)) - {rank.rank for rank in self.ranks}))

    @property
    def uses_gpu(self) -> bool:
        """Whether any rank does."""
        return any(rank.uses_gpu for rank in self.ranks)

    @property
    def is_ddp(self) -> bool:
        """Whether any rank shows DistributedDataParallel."""
        return any(rank.observation.parallelism == "ddp" for rank in self.ranks)

    @property
    def has_exchange(self) -> bool:
        """Whether any rank shows gradients being reduced within a step."""
        return any(rank.observation.exchanges for rank in self.ranks)


def examine_rank(trace: Trace, files: RankFiles) -> RankExamination:
    """Reduces one rank's trace to what the findings ask for."""
    events = trace.events
    observation = observe_rank(trace)
    categories = set(events["category"].cat.categories)
    names = list(events["name"].cat.categories)
    return RankExamination(
        observation=observation,
        files=tuple(source.name for source in files.sources),
        recording=trace.recording,
        steps=_find_steps(trace, observation),
        clock_ns=1000 if not (events["start_ns"] % 1000).any() else 1,
        has_host_operators=bool(categories & OPERATOR),
        uses_gpu=trace.device_type == "cuda"
        or "nccl" in trace.backend
        or bool(categories & RUNTIME)
        or any(NCCL_SPAN.match(name) or GPU_OPERATOR.match(name) for name in names),
        is_damaged=bool(trace.damaged_ns),
        damaged_steps=tuple(find_damaged_steps(events, trace.damaged_ns)),
        gradients_known=all(map(knows_gradients, observation.exchanges)),
    )


def _find_steps(trace: Trace, observation: RankObservation) -> tuple[RecordedStep, ...]:
    """The profiler's steps, the first ones included; where it marked none, those that the analysis found."""
    found = [(step.number, step.host_start_ns, step.host_end_ns) for step in observation.steps]
    updates = trace.events[match_names(trace.events, OPTIMIZER_STEP.match)]
    names, update_ns = updates["name"].to_numpy(), updates["start_ns"].to_numpy()
    reductions = _find_reductions(observation)
    steps = []
    for number, start, end in list_steps(trace.events) or found:
        own_updates = Counter(names[(start <= update_ns) & (update_ns < end)])
        reduced = tuple(c.num_elements for c in reductions if start <= _find_launch_ns(c) < end)
        steps.append(RecordedStep(number, max(own_updates.values(), default=0), reduced))
    return tuple(steps)


def _find_reductions(observation: RankObservation) -> list[Collective]:
    """All-reduces that may be buckets, whatever step or phase they are in, of the group that has most of them."""
    candidates = [
        collective
        for collective in observation.collectives
        if collective.kind == "all_reduce" and collective.num_elements != 1
        if not collective.dtype or is_floating(collective.dtype)
    ]
    groups = Counter(collective.process_group for collective in candidates)
    most = max(groups, key=lambda name: (groups[name], name), default=None)
    return [collective for collective in candidates if collective.process_group == most]


def _find_launch_ns(collective: Collective) -> int:
    return collective.launch_ns if collective.launch_ns >= 0 else collective.start_ns
