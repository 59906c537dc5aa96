"""Findings about steps: how many were recorded, which, and by what they are told apart."""

from __future__ import annotations

from functools import reduce
from itertools import pairwise
from operator import and_

from advisor.doctor.examination import RecordedStep, RunExamination
from advisor.doctor.recipe import NUM_ACTIVE_STEPS, NUM_WAITING_STEPS
from advisor.readers.display import list_numbers
from advisor.schema import Evidence, Finding

FEW_STEPS = 5
"""Fewer steps than this leave wide intervals."""
MANY_UPDATES = 3
"""Calls of one optimizer in one step of the profiler: two may be two optimizers of one class."""
CALL_STEP = (
    "Give profile() a schedule, without which torch marks no steps, and call prof.step() after every optimizer step."
)


def no_steps(run: RunExamination) -> Finding | None:
    """Nothing tells one step from the next."""
    ranks = [rank.rank for rank in run.ranks if rank.observation.step_source == "window"]
    if not ranks:
        return None
    return Finding(
        code="no_steps",
        severity="warning" if run.has_exchange else "error",
        message="Nothing tells where a step begins: no ProfilerStep marks, and no second forward or optimizer step.",
        cost="The whole recording counts as one step, whatever is in it.",
        fix=CALL_STEP,
        ranks=tuple(ranks),
        evidence=(Evidence(name="without steps", value=len(ranks), unit="ranks"),),
    )


def no_step_marks(run: RunExamination) -> Finding | None:
    """Steps had to be told apart by what happens in them."""
    ranks = [rank for rank in run.ranks if rank.observation.step_source in ("optimizer", "forward")]
    if not ranks:
        return None
    how = "optimizer steps" if ranks[0].observation.step_source == "optimizer" else "forwards"
    return Finding(
        code="no_step_marks",
        severity="warning",
        message=f"No ProfilerStep marks: {how} tell the steps apart.",
        cost="The step before the first of them is lost, and DDP's first steps count like any other.",
        fix=CALL_STEP,
        ranks=tuple(rank.rank for rank in ranks),
        evidence=(Evidence(name="without marks", value=len(ranks), unit="ranks"),),
    )


def step_not_called(run: RunExamination) -> Finding | None:
    """One mark around many optimizer steps: the profiler was never told that a step had ended."""
    most = max((step.num_updates for rank in run.ranks for step in rank.steps), default=0)
    if most < MANY_UPDATES or any(len(rank.steps) != 1 for rank in run.ranks) or _lacks_marks(run):
        return None
    return Finding(
        code="step_not_called",
        severity="warning",
        message=f"One ProfilerStep holds {most} optimizer steps: prof.step() was not called between them.",
        cost="They count as one step; with a schedule that waits, nothing would have been recorded at all.",
        fix="Call prof.step() after every optimizer step.",
        evidence=(Evidence(name="optimizer steps in one ProfilerStep", value=most, unit="steps"),),
    )


def one_step(run: RunExamination) -> Finding | None:
    """A single step, or none that is whole."""
    num_steps = _count_used_steps(run)
    if num_steps > 1 or not run.ranks or _lacks_marks(run) or step_not_called(run):
        return None
    if num_steps == 0 and any(rank.is_damaged for rank in run.ranks):
        return None
    return Finding(
        code="one_step",
        severity="warning" if num_steps else "error",
        message="One step was recorded." if num_steps else "No whole step was recorded.",
        cost="Nothing says how much steps differ, so every interval is a guess." if num_steps else "Nothing is left.",
        fix=f"Record more of them: active={NUM_ACTIVE_STEPS} in the schedule.",
        evidence=(Evidence(name="steps", value=num_steps, unit="steps", threshold=FEW_STEPS),),
    )


def few_steps(run: RunExamination) -> Finding | None:
    """Too few steps for narrow intervals."""
    num_steps = _count_used_steps(run)
    if not 1 < num_steps < FEW_STEPS:
        return None
    return Finding(
        code="few_steps",
        severity="hint",
        message=f"{num_steps} steps can be used.",
        cost="Intervals are wide, and a single odd step weighs much.",
        fix=f"Record more of them: active={NUM_ACTIVE_STEPS} in the schedule.",
        evidence=(Evidence(name="steps", value=num_steps, unit="steps", threshold=FEW_STEPS),),
    )


def warm_up_recorded(run: RunExamination) -> Finding | None:
    """DDP rebuilt its buckets while it was recorded, usually after one all-reduce of the whole model."""
    ranks = [rank for rank in run.ranks if find_steps_before_rebuild(rank.steps)]
    if not ranks:
        return None
    numbers = {step.number for rank in ranks for step in find_steps_before_rebuild(rank.steps)}
    are_used = any(step.number in numbers for rank in ranks for step in rank.observation.steps)
    first, last = find_steps_before_rebuild(ranks[0].steps)[0], ranks[0].steps[-1]
    return Finding(
        code="warm_up_recorded",
        severity="warning" if are_used else "hint",
        message=f"DDP rebuilt its buckets during the recording: step {list_numbers(numbers)} has the old ones.",
        cost="Such steps are not like the others and are counted with them."
        if are_used
        else "Such steps are left out, so they were recorded for nothing.",
        fix=f"Let the first steps pass: wait={NUM_WAITING_STEPS} in the schedule.",
        ranks=tuple(rank.rank for rank in ranks),
        evidence=(
            Evidence(name="steps before the rebuild", value=len(numbers), unit="steps"),
            Evidence(name=f"all-reduces in step {first.number}", value=len(first.reduced), unit=""),
            Evidence(name="all-reduces in the last step", value=len(last.reduced), unit=""),
        ),
    )


def different_steps(run: RunExamination) -> Finding | None:
    """Ranks that recorded different steps."""
    numbers = [{step.number for step in rank.steps} for rank in run.ranks]
    if len(run.ranks) < 2 or _lacks_marks(run) or all(a == b for a, b in pairwise(numbers)):
        return None
    shared = len(reduce(and_, numbers))
    recorded = len(set().union(*numbers))
    return Finding(
        code="different_steps",
        severity="warning",
        message=f"The ranks recorded different steps: {shared} of {recorded} are there on all of them.",
        cost="Only these show who waits for whom." if shared else "Nothing can be compared between ranks.",
        fix="Give every rank the same schedule, and call prof.step() equally often on each.",
        evidence=(
            Evidence(name="steps on every rank", value=shared, unit="steps"),
            Evidence(name="steps on any rank", value=recorded, unit="steps"),
        ),
    )


def find_steps_before_rebuild(steps: tuple[RecordedStep, ...]) -> list[RecordedStep]:
    """The steps that reduce the same elements as the last one in other buckets.

    Where sizes are unknown, a step with one all-reduce before one with several is such a step.

    Example: of steps that reduce (2101248,), (262656, 1838592) and (262656, 1838592) elements it is the first.
    """
    if not steps:
        return []
    last = steps[-1].reduced
    if min(last, default=0) < 0:
        return [step for step in steps if len(step.reduced) == 1 < len(last)]
    return [step for step in steps if sum(step.reduced) == sum(last) and sorted(step.reduced) != sorted(last)]


def _count_used_steps(run: RunExamination) -> int:
    return max((len(rank.observation.steps) for rank in run.ranks), default=0)


def _lacks_marks(run: RunExamination) -> bool:
    return any(rank.observation.step_source != "profiler" for rank in run.ranks)
