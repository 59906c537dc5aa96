"""`ddp-advisor analyze`: trace files in, report out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from advisor.errors import CheckFailedError

if TYPE_CHECKING:
    from advisor.schema import Report


def analyze(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH", help="A run folder, a folder of traces, or the trace files of one run."),
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder to write report.json and report.html into.")
    ] = None,
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

    from advisor.cli._files import choose_folder, tell_where, write_report
    from advisor.cli._progress import show_progress
    from advisor.pipeline import analyze as analyze_traces
    from reports import render_terminal

    folder = choose_folder(paths, out)
    with show_progress("Reading traces", visible=not as_json) as on_progress:
        report = analyze_traces(paths, on_progress=on_progress)
    write_report(report, folder)
    if as_json:
        typer.echo((folder / "report.json").read_text(encoding="utf-8"), nl=False)
    else:
        render_terminal(report, Console())
        tell_where(folder)
    if strict:
        _fail_on_errors(report)


def _fail_on_errors(report: Report) -> None:
    errors = [alarm.code for alarm in report.alarms if alarm.severity == "error"]
    if errors:
        raise CheckFailedError(f"The run has {len(errors)} error alarm(s): {', '.join(errors)}.")
