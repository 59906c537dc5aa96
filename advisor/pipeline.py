"""The whole analysis in one screen: traces in, Report out; and what-ifs from the Report alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec

from advisor.errors import UsageError
from advisor.executors import Workers, open_executor
from advisor.frameworks import add_code
from advisor.holistic import MOST_RANKS, merge_answers
from advisor.observation import RunObservation
from advisor.readers.run import Progress, read_ranks
from advisor.readers.run_files import RunFiles, find_run
from advisor.replay import Job, find_gap, predict
from advisor.report import build_report
from advisor.schema import DDPConfig, Ladder, Prediction, Report
from advisor.survey import survey_rank


def analyze(
    paths: Sequence[str | Path],
    *,
    ranks: Sequence[int] = (),
    holistic: bool = True,
    workers: Workers = 1,
    on_progress: Progress | None = None,
) -> Report:
    """Reads the traces of one run and says where the step time goes and what would be faster.

    Args:
        paths: Run folders, folders of trace files, patterns, archives or URLs of one run; `-` is standard input.
        ranks: The ranks of the files that tell none, in the order of their names.
        holistic: Whether to ask HolisticTraceAnalysis too, where it is installed and there are GPU events.
        workers: Processes that read ranks, None for as many as pay, or the address of a Dask scheduler. Processes
            import the main module of a program again, so it must be guarded by `if __name__ == "__main__"`.
        on_progress: Called with (done, total, text) while files are read.

    Returns:
        The report, the same whoever read the ranks; nothing is written.

    Raises:
        InputError: Something is missing, unreadable or no trace.
        UsageError: The workers cannot be had, or one was killed.
    """
    return analyze_run(find_run(paths, ranks), holistic=holistic, workers=workers, on_progress=on_progress)


def analyze_run(
    run: RunFiles,
    *,
    holistic: bool = True,
    workers: Workers = 1,
    ladders: Sequence[Ladder] = (),
    on_progress: Progress | None = None,
) -> Report:
    """Analyses a run whose files are found already, with what was measured apart from it.

    Args:
        run: Its files.
        holistic: As in `analyze`.
        workers: As in `analyze`.
        ladders: Collectives timed on its machines (`read_probe`, `read_nccl_tests`), instead of the run's own probe.
        on_progress: As in `analyze`.

    Returns:
        The report; nothing is written.

    Raises:
        InputError: No trace can be read.
    """
    survey = partial(survey_rank, examined=frozenset(files.rank for files in run.ranks[: MOST_RANKS * holistic]))
    with open_executor(workers, run) as executor:
        surveys, notes = read_ranks(run, survey, executor=executor, on_progress=on_progress)
    known = tuple(ladders) or ((run.probe,) if run.probe else ())
    observed = tuple(each.observation for each in surveys)
    report = add_code(build_report(RunObservation(run.source, observed, run.manifest, notes, known)))
    if not holistic:
        return report
    answers = [s.holistic for s in surveys if s.holistic is not None]
    return msgspec.structs.replace(report, holistic=merge_answers(answers, len(surveys)))


def what_if(report: Report, config: DDPConfig) -> Prediction:
    """Predicts the step under `config` from the report alone.

    The profiled setting itself comes out as the report's own `today`, explained up to the step that was measured.

    Raises:
        UsageError: The report holds no step profile, calibration or communication model; or replay cannot evaluate
            the setting: other ranks (`forecast_ranks` does), buckets that would be split where nobody knows their
            gradients, a hook of unknown cost, what no profile of another setting tells.
    """
    job = find_job(report)
    if job is None:
        raise UsageError(f"The report of {report.source} cannot predict: its buckets or transfers are unknown.")
    gap = find_gap(job, config)
    if gap is not None:
        raise UsageError(gap)
    measured = report.baseline if config == report.config else None
    return predict(job, config, measured_ns=measured.measured_ns.value if measured else None)


def find_job(report: Report) -> Job | None:
    """What replay needs, where the report holds it."""
    if report.step_profile is None or report.calibration is None:
        return None
    dtypes = {bucket.dtype for bucket in report.buckets}
    models = [model for model in report.comm_models if model.kind == "all_reduce" and model.dtype in dtypes]
    if not models:
        return None
    model = max(models, key=lambda model: len(model.samples))
    return Job(report.step_profile, report.calibration, model, report.config)
