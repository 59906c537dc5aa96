"""What a person asks of processes: record a run, check a job, probe the machine. Imports no torch; they do."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec

from advisor.schema import Ladder, read_json
from workloads.job import check_spec
from workloads.processes import OnProgress, launch
from workloads.requests import CheckRequest, CheckResult, CheckResults, ProbeRequest, RecordRequest
from workloads.run_folder import abandon_run_folder, default_run_folder, open_run_folder

__all__ = ["OnProgress", "check_run", "probe_run", "record_run"]

START_AND_STOP_S = 180.0
"""What a probe may take beyond its budget."""


def record_run(request: RecordRequest, on_progress: OnProgress | None = None, *, timeout_s: float = 900.0) -> Path:
    """Trains a job under the profiler on `request.config.world_size` local processes.

    Args:
        request: What to train and how; an `out` of None becomes `runs/<workload>-<time>`.
        on_progress: Called as the steps go by.
        timeout_s: The whole run's limit.

    Returns:
        The run folder, whole.

    Raises:
        UsageError: The workload, preset or setting cannot be meant.
        InputError: The folder cannot be written or holds something already.
        RunError: A rank failed, or the run took too long.
    """
    check_spec(request.job)
    folder = Path(request.out) if request.out else default_run_folder(request.job.workload)
    open_run_folder(folder)
    try:
        launch(msgspec.structs.replace(request, out=str(folder.absolute())), on_progress, timeout_s=timeout_s)
    except BaseException:
        abandon_run_folder(folder)
        raise
    return folder


def check_run(
    request: CheckRequest, on_progress: OnProgress | None = None, *, timeout_s: float = 600.0
) -> tuple[CheckResult, ...]:
    """Checks on `request.config.world_size` local processes that a job trains there what it would train on one.

    Args:
        request: The job and its settings; `out` is chosen here.
        on_progress: Called after each check.
        timeout_s: Limit for all checks together.

    Returns:
        Every check with its answer; one that says no is no error.

    Raises:
        UsageError: The workload, preset or setting cannot be meant.
        RunError: A rank failed, or the checks took too long.
    """
    check_spec(request.job)
    with tempfile.TemporaryDirectory(prefix="ddp-advisor-") as folder:
        out = Path(folder) / "results.json"
        launch(msgspec.structs.replace(request, out=str(out)), on_progress, timeout_s=timeout_s)
        return read_json(CheckResults, out).results


def probe_run(request: ProbeRequest, on_progress: OnProgress | None = None) -> Ladder:
    """Times collectives on `request.config.world_size` local processes.

    Args:
        request: World size, backend and budget; `out` is chosen here.
        on_progress: Called after each visit with the seconds used and those of the budget.

    Returns:
        What was measured, and what was left out.

    Raises:
        UsageError: The backend or the device is not there.
        RunError: A rank failed, or the probe took too long.
    """
    with tempfile.TemporaryDirectory(prefix="ddp-advisor-") as folder:
        out = Path(folder) / "probe.json"
        timeout_s = request.budget_s + START_AND_STOP_S
        launch(msgspec.structs.replace(request, out=str(out)), on_progress, timeout_s=timeout_s)
        return read_json(Ladder, out)
