"""`ddp-advisor analyze`: trace files in, report out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from advisor.errors import CheckFailedError, UsageError
from advisor.schema import Framework, Report


def analyze(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH", help="A run folder, or its traces: files, folders, patterns, archives, URLs, - for a pipe."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder to write report.json and report.html into.")
    ] = None,
    ranks: Annotated[
        str | None, typer.Option(metavar="N,N,…", help="Ranks of the files that tell none, in name order: 0,1 or 0-7.")
    ] = None,
    probe: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A probe.json of these machines; default the run folder's own.")
    ] = None,
    nccl_tests: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What all_reduce_perf and its like printed or wrote as JSON.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Processes that read ranks; default as many as pay."),
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Dask scheduler whose workers read the ranks, such as tcp://host:8786."),
    ] = None,
    no_holistic: Annotated[
        bool, typer.Option("--no-holistic", metavar="", help="Do not ask HolisticTraceAnalysis, which takes time.")
    ] = False,
    framework: Annotated[Framework, typer.Option(help="What the code beside the advice is for.")] = "torch",
    as_json: Annotated[
        bool, typer.Option("--json", metavar="", help="Print report.json instead of the summary.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", metavar="", help="Exit with 1 when an alarm is an error.")
    ] = False,
) -> None:
    """Read the profiler traces of a run and say where its step time goes and what would be faster.

    A run folder gets its report written into it; traces from elsewhere get a folder of their own below runs/.
    """
    from rich.console import Console

    from advisor.cli._files import choose_folder, tell_what_is_missing, tell_where, write_report
    from advisor.cli._progress import show_progress
    from advisor.pipeline import analyze_run
    from advisor.readers.locations import LocalFile
    from advisor.readers.nccl_tests import read_nccl_tests
    from advisor.readers.probe import read_probe
    from advisor.readers.run_files import find_run
    from reports import render_terminal

    if workers is not None and scheduler is not None:
        raise UsageError("--workers starts processes here, --scheduler asks a cluster: give one of them.")
    folder = choose_folder(paths, out)
    ladders = [
        *([read_probe(LocalFile(probe))] if probe else []),
        *([read_nccl_tests(LocalFile(nccl_tests))] if nccl_tests else []),
    ]
    with show_progress("Reading traces", visible=not as_json) as on_progress:
        report = analyze_run(
            find_run(paths, read_ranks(ranks or "")),
            holistic=not no_holistic,
            workers=scheduler or workers,
            ladders=ladders,
            on_progress=on_progress,
        )
    write_report(report, folder)
    if as_json:
        typer.echo((folder / "report.json").read_text(encoding="utf-8"), nl=False)
    else:
        render_terminal(report, Console(), framework)
        tell_where(folder)
        tell_what_is_missing(report)
    if strict:
        _fail_on_errors(report)


def read_ranks(text: str) -> list[int]:
    """The numbers of `0,2,3` or `0-7`.

    Raises:
        UsageError: It is written otherwise.
    """
    spans = [re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", word.strip()) for word in text.split(",") if word.strip()]
    if None in spans:
        raise UsageError(f"--ranks {text!r} is no list of ranks: write it as 0,1,2 or 0-7.")
    return [rank for span in spans if span for rank in range(int(span[1]), int(span[2] or span[1]) + 1)]


def _fail_on_errors(report: Report) -> None:
    errors = [alarm.code for alarm in report.alarms if alarm.severity == "error"]
    if errors:
        raise CheckFailedError(f"The run has {len(errors)} error alarm(s): {', '.join(errors)}.")
