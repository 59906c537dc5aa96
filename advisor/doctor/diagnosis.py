"""The whole of `ddp-advisor doctor` on one screen: paths in, `Diagnosis` out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Final

from advisor.doctor import FINDINGS
from advisor.doctor.examination import RankExamination, RunExamination, examine_rank
from advisor.doctor.recipe import write_recipe
from advisor.errors import InputError, MixedRanksError
from advisor.readers.batches import open_archives, order_ranks
from advisor.readers.display import list_names
from advisor.readers.run import read_rank
from advisor.readers.run_files import FoundRuns, RankFiles, RunFiles, find_runs
from advisor.readers.sources import Source
from advisor.report import find_tool_version
from advisor.schema import (
    Diagnosis,
    Finding,
    FindingCode,
    FindingSeverity,
    Quality,
    QualityNote,
    RecordedRank,
    RunDiagnosis,
)

Progress = Callable[[int, int, str], None]

SEVERITIES: Final[tuple[FindingSeverity, ...]] = ("error", "warning", "hint")
QUALITIES: Final[tuple[Quality, ...]] = ("unusable", "usable", "good")
"""Both with the worst first."""
NOT_BY_RECORDING: Final[frozenset[FindingCode]] = frozenset({"no_ddp", "unknown_ranks", "harmful_environment"})
"""What other lines around the training loop would not change."""
MOST_STRAYS_READ = 4


def diagnose(
    paths: Sequence[str | Path], *, ranks: Sequence[int] = (), on_progress: Progress | None = None
) -> Diagnosis:
    """Reads every recording below `paths` once, and says how good each is and how to record better.

    Args:
        paths: Run folders, folders of trace files, patterns, archives or URLs; `-` is standard input.
        ranks: The ranks of the files that tell none, in the order of their names.
        on_progress: Called with (ranks read, ranks in all, file name).

    Raises:
        InputError: A path does not exist or cannot be read.
        UsageError: `ranks` does not fit the files that tell none.
    """
    found = find_runs(paths, ranks)
    num_ranks = sum(len(run.ranks) for run in found.runs)
    numbers = count()

    def on_file(name: str) -> None:
        if on_progress:
            on_progress(next(numbers), num_ranks, name.rpartition("/")[2])

    if found.runs:
        left_out = [*found.failures, *_list_strays(found.strays)]
        runs = [_conclude(*_examine(files, on_file)) for files in found.runs]
    else:
        run, notes = _examine(_take_for_run(found), on_file)
        left_out = list(run.left_out)
        runs = [_conclude(replace(run, left_out=found.failures, num_mixed=0), notes)]
    return Diagnosis(
        tool_version=find_tool_version(),
        source=found.source,
        quality=min((run.quality for run in runs), key=QUALITIES.index),
        runs=tuple(runs),
        left_out=tuple(left_out),
    )


def judge(findings: Sequence[Finding]) -> Quality:
    """What is left of a recording once all is known that it lacks."""
    severities = {finding.severity for finding in findings}
    return "unusable" if "error" in severities else "usable" if "warning" in severities else "good"


def _take_for_run(found: FoundRuns) -> RunFiles:
    """Where nothing looks like a trace at its start, files that may be one all the same."""
    strays = found.strays[:MOST_STRAYS_READ]
    ranks = tuple(RankFiles(rank, (replace(stray, rank=rank),)) for rank, stray in enumerate(strays))
    return RunFiles(found.source, ranks, strays=(), manifest=None, probe=None, notes=())


def _list_strays(strays: Sequence[Source]) -> list[str]:
    names = list_names([stray.name for stray in strays])
    return [f"{names} {'is no trace' if len(strays) == 1 else 'are no traces'}."] if strays else []


def _examine(files: RunFiles, on_file: Callable[[str], None]) -> tuple[RunExamination, tuple[QualityNote, ...]]:
    """Reads the ranks one after the other and keeps no events; what cannot be read does not stop the others."""
    ranks: dict[int, RankExamination] = {}
    notes: dict[int, tuple[QualityNote, ...]] = {}
    left_out: list[str] = []
    num_mixed = 0
    with open_archives(files.ranks) as archives:
        for rank_files in order_ranks(files.ranks):
            on_file(rank_files.sources[0].name)
            try:
                trace, about = read_rank(rank_files, archives)
            except InputError as error:
                left_out.append(str(error))
                num_mixed += isinstance(error, MixedRanksError)
                continue
            if trace.rank in ranks:
                known = ranks[trace.rank].files[0]
                left_out.append(f"{trace.file} is rank {trace.rank}, as is {known}: give one of them.")
                continue
            ranks[trace.rank] = examine_rank(trace, rank_files)
            notes[trace.rank] = about
    examined = RunExamination(
        source=files.source,
        ranks=tuple(ranks[rank] for rank in sorted(ranks)),
        manifest=files.manifest,
        left_out=tuple(left_out),
        num_unranked=files.num_unranked,
        num_mixed=num_mixed,
    )
    return examined, (*files.notes, *(note for rank in sorted(notes) for note in notes[rank]))


def _conclude(run: RunExamination, notes: Sequence[QualityNote]) -> RunDiagnosis:
    findings = [finding for check in FINDINGS if (finding := check(run)) is not None]
    can_record_better = any(finding.code not in NOT_BY_RECORDING for finding in findings)
    return RunDiagnosis(
        source=run.source,
        quality=judge(findings),
        world_size=run.world_size,
        ranks=tuple(map(_describe_rank, run.ranks)),
        missing_ranks=run.missing_ranks,
        torch_version=run.manifest.versions.get("torch") if run.manifest else None,
        findings=tuple(sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))),
        left_out=run.left_out,
        notes=tuple(notes),
        recipe=write_recipe(uses_gpu=run.uses_gpu or not run.ranks) if can_record_better else "",
    )


def _describe_rank(rank: RankExamination) -> RecordedRank:
    observation, recording = rank.observation, rank.recording
    return RecordedRank(
        rank=rank.rank,
        files=rank.files,
        packing=recording.packing,
        num_bytes=recording.num_bytes,
        num_events=recording.num_events,
        num_kept_events=observation.num_events,
        world_size=observation.world_size,
        backend=observation.backend,
        host=observation.host,
        device_type=observation.device_type,
        devices=recording.devices,
        versions=dict(recording.versions),
        record_shapes=recording.record_shapes,
        with_stack=recording.with_stack,
        profile_memory=recording.profile_memory,
        clock_ns=rank.clock_ns,
        step_source=observation.step_source,
        steps=tuple(step.number for step in rank.steps),
        num_used_steps=len(observation.steps),
        num_collectives=len(observation.collectives),
        num_sized_collectives=sum(collective.num_bytes >= 0 for collective in observation.collectives),
    )
