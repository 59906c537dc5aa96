"""The whole analysis in one screen: traces in, Report out; and what-ifs from the Report alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from advisor.errors import UsageError
from advisor.holistic import examine_run
from advisor.observation import RunObservation, observe_rank
from advisor.readers.run import read_run
from advisor.replay import Job, predict
from advisor.report import build_report
from advisor.schema import DDPConfig, Prediction, Report

Progress = Callable[[int, int, str], None]


def analyze(
    paths: Sequence[str | Path],
    *,
    ranks: Sequence[int] = (),
    holistic: bool = True,
    on_progress: Progress | None = None,
) -> Report:
    """Reads the traces of one run and says where the step time goes and what would be faster.

    Args:
        paths: Run folders, folders of trace files, patterns, archives or URLs of one run; `-` is standard input.
        ranks: The ranks of the files that tell none, in the order of their names.
        holistic: Whether to ask HolisticTraceAnalysis too, where it is installed and there are GPU events.
        on_progress: Called with (done, total, text) while files are read.

    Returns:
        The report; nothing is written.

    Raises:
        InputError: Something is missing, unreadable or no trace.
    """
    run = read_run(paths, on_progress, ranks)
    observed = tuple(observe_rank(trace) for trace in run.traces)
    report = build_report(RunObservation(run.source, observed, run.manifest, run.notes))
    return msgspec.structs.replace(report, holistic=examine_run(run.traces)) if holistic else report


def what_if(report: Report, config: DDPConfig) -> Prediction:
    """Predicts the step under `config` from the report alone.

    Raises:
        UsageError: The report holds no step profile, calibration or communication model.
    """
    job = find_job(report)
    if job is None:
        raise UsageError(f"The report of {report.source} cannot predict: its buckets or transfers are unknown.")
    return predict(job, config)


def find_job(report: Report) -> Job | None:
    """What replay needs, where the report holds it."""
    if report.step_profile is None or report.calibration is None:
        return None
    dtypes = {bucket.dtype for bucket in report.buckets}
    models = [model for model in report.comm_models if model.kind == "all_reduce" and model.dtype in dtypes]
    if not models:
        return None
    return Job(report.step_profile, report.calibration, max(models, key=lambda model: len(model.samples)))
