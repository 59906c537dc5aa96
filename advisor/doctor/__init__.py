"""How good a recording is: one function a finding, listed in FINDINGS.

    diagnosis.py    paths in, `Diagnosis` out
    examination.py  what the findings read
    files.py        findings about the files: whose they are, which are missing, damage
    contents.py     findings about what the events tell: kernels, collectives, sizes, DDP itself
    steps.py        findings about steps
    recipe.py       the lines that record a run well

A finding reads the examination of one run and says what is so, what it costs and how to do better, or nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from advisor.doctor import contents, files, steps
from advisor.doctor.examination import RunExamination
from advisor.schema import Finding

Check = Callable[[RunExamination], Finding | None]

FINDINGS: tuple[Check, ...] = (
    files.no_trace,
    files.mixed_ranks,
    files.unreadable_files,
    files.unknown_world_size,
    files.single_rank,
    files.missing_ranks,
    files.shared_path,
    files.unknown_ranks,
    files.damaged_files,
    contents.no_device_activity,
    contents.no_host_activity,
    contents.no_communication,
    contents.no_ddp,
    contents.no_exchange,
    contents.no_collective_sizes,
    contents.no_shapes,
    contents.unmatched_gradients,
    contents.disturbing_environment,
    steps.no_steps,
    steps.no_step_marks,
    steps.step_not_called,
    steps.one_step,
    steps.few_steps,
    steps.warm_up_recorded,
    steps.different_steps,
    files.stacks,
)
"""In the order in which they are told among those that weigh alike."""
