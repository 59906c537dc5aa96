"""Findings about the files themselves: whose they are, which are missing, and what state they are in."""

from __future__ import annotations

from advisor.doctor.examination import RunExamination
from advisor.doctor.recipe import NUM_IDLE_STEPS
from advisor.readers.display import list_numbers
from advisor.readers.locations import StandardInput
from advisor.readers.paths import base_name
from advisor.schema import Evidence, Finding

UNREAD_SHARE = 0.5
"""Stacks are worth a word where more of a file's events than this are never read."""
OWN_FILES = 'Give every rank a file of its own: worker_name=f"rank{dist.get_rank()}", as below.'


def no_trace(run: RunExamination) -> Finding | None:
    """Nothing at all, which is what a handler leaves that never fires."""
    if run.ranks or run.left_out:
        return None
    return Finding(
        code="no_trace",
        severity="error",
        message=f"{run.source} holds no trace.",
        cost="There is nothing to analyse.",
        fix=f"With a schedule, nothing is recorded before prof.step() was called wait + warmup times ({NUM_IDLE_STEPS} "
        "below), and without it on_trace_ready never fires: call it after every optimizer step, on every rank. Ranks "
        "that export to one path at the same time may leave no file either: give each its own.",
        evidence=(Evidence(name="traces", value=0, unit="files"),),
    )


def mixed_ranks(run: RunExamination) -> Finding | None:
    """Files into which several ranks wrote."""
    if not run.num_mixed:
        return None
    return Finding(
        code="mixed_ranks",
        severity="warning" if run.ranks else "error",
        message="One file holds several recordings."
        if run.num_mixed == 1
        else f"{run.num_mixed} files hold several recordings each.",
        cost="Nothing tells which event is of which rank, so such a file is left out.",
        fix=OWN_FILES,
        evidence=(Evidence(name="with several recordings", value=run.num_mixed, unit="files"),),
    )


def unreadable_files(run: RunExamination) -> Finding | None:
    """Files of the run that could not be read, those of several ranks excepted."""
    number = len(run.left_out) - run.num_mixed
    if not number:
        return None
    return Finding(
        code="unreadable_files",
        severity="warning" if run.ranks else "error",
        message=f"What was recorded of {number} ranks cannot be read." if run.ranks else "Nothing can be read.",
        cost="They count as missing." if run.ranks else "There is nothing to analyse.",
        fix="What is wrong with each file, and what to do about it, is said below.",
        evidence=(Evidence(name="unreadable", value=number, unit="files"),),
    )


def unknown_ranks(run: RunExamination) -> Finding | None:
    """Several files of which some tell no rank."""
    num_files = sum(len(rank.files) for rank in run.ranks)
    if not run.num_unranked or num_files == 1:
        return None
    return Finding(
        code="unknown_ranks",
        severity="warning",
        message=f"{run.num_unranked} of {num_files} files tell no rank, neither inside nor by name.",
        cost="`analyze` asks for their ranks; here they are numbered in the order of their names.",
        fix="Name them rank0.json, rank1.json and so on, or give --ranks 0,1,… in the order of their names.",
        evidence=(Evidence(name="without a rank", value=run.num_unranked, unit="files"),),
    )


def missing_ranks(run: RunExamination) -> Finding | None:
    """Ranks that took part and left no file."""
    missing = run.missing_ranks
    if not missing or run.world_size is None:
        return None
    return Finding(
        code="missing_ranks",
        severity="warning",
        message=f"{len(missing)} of {run.world_size} ranks {'is' if len(missing) == 1 else 'are'} missing: "
        f"{list_numbers(missing)}.",
        cost="Waiting for a late rank cannot be told from transfer, so communication times are upper limits, "
        "stragglers stay unseen and there is no advice on bucket sizes.",
        fix="Run the profiler on every rank and bring all files together.",
        ranks=missing,
        evidence=(
            Evidence(name="missing", value=len(missing), unit="ranks"),
            Evidence(name="world size", value=run.world_size, unit="ranks"),
        ),
    )


def shared_path(run: RunExamination) -> Finding | None:
    """One file alone whose name tells no rank: the others may have written to the same path."""
    if len(run.ranks) != 1 or not run.missing_ranks:
        return None
    (rank,) = run.ranks
    if rank.name_tells_rank or rank.files[0] == StandardInput.name:
        return None
    return Finding(
        code="shared_path",
        severity="hint",
        message=f"There is one file, and its name tells no rank: {base_name(rank.files[0])}.",
        cost="If all ranks write to this path, each overwrites the one before, or their export fails.",
        fix=OWN_FILES,
        ranks=(rank.rank,),
        evidence=(Evidence(name="ranks with a file", value=1, unit="ranks"),),
    )


def unknown_world_size(run: RunExamination) -> Finding | None:
    """No file says how many ranks there were."""
    if run.world_size is not None or not run.ranks:
        return None
    is_alone = len(run.ranks) == 1
    return Finding(
        code="unknown_world_size",
        severity="error" if is_alone else "hint",
        message="No file says how many ranks took part (it has no distributedInfo).",
        cost="One file alone that exchanges anything counts as one of two ranks, so nothing is advised."
        if is_alone
        else "Missing ranks would go unnoticed.",
        fix="Start the profiler after init_process_group, and record every rank.",
        evidence=(Evidence(name="files", value=len(run.ranks), unit="ranks"),),
    )


def single_rank(run: RunExamination) -> Finding | None:
    """A job of one rank."""
    if run.world_size != 1:
        return None
    return Finding(
        code="single_rank",
        severity="error",
        message="The job ran on one rank.",
        cost="One rank exchanges no gradients, so there is nothing to advise on.",
        fix="Record the job on at least two ranks.",
        evidence=(Evidence(name="world size", value=1, unit="ranks"),),
    )


def damaged_files(run: RunExamination) -> Finding | None:
    """Files that lost events."""
    damaged = [rank for rank in run.ranks if rank.is_damaged]
    if not damaged:
        return None
    lost = max(len(rank.damaged_steps) for rank in damaged)
    nothing_left = not any(rank.observation.steps for rank in run.ranks)
    return Finding(
        code="damaged_files",
        severity="error" if nothing_left else "warning",
        message=f"{len(damaged)} of {len(run.ranks)} ranks have files that are cut off or damaged.",
        cost="No step is whole." if nothing_left else f"Up to {lost} steps a rank have lost events and are left out.",
        fix="Copy the files again; a rank must not be killed before its export has ended.",
        ranks=tuple(rank.rank for rank in damaged),
        evidence=(Evidence(name="steps left out, at most", value=lost, unit="steps"),),
    )


def stacks(run: RunExamination) -> Finding | None:
    """Python stacks, which nothing here reads."""
    recorded = [rank for rank in run.ranks if rank.recording.with_stack]
    num_events = sum(rank.recording.num_events for rank in recorded)
    unread = 1 - sum(rank.observation.num_events for rank in recorded) / max(1, num_events)
    if not recorded or unread <= UNREAD_SHARE:
        return None
    return Finding(
        code="stacks",
        severity="hint",
        message=f"Python stacks were recorded (with_stack=True): {unread:.0%} of the events are never read here.",
        cost="They make files large, and the host slower than it is without them.",
        fix="Leave with_stack out.",
        ranks=tuple(rank.rank for rank in recorded),
        evidence=(
            Evidence(name="events that are not read", value=unread, unit="fraction"),
            Evidence(
                name="text a rank, at most", value=max(rank.recording.num_bytes for rank in recorded), unit="bytes"
            ),
        ),
    )
