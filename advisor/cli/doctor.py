"""`ddp-advisor doctor`: how good recordings are, and how to record better."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from advisor.cli.analyze import read_ranks
from advisor.errors import CheckFailedError

if TYPE_CHECKING:
    from advisor.schema import Diagnosis


def doctor(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH", help="Traces of any number of runs: files, folders, patterns, archives, URLs, - for a pipe."
        ),
    ],
    ranks: Annotated[
        str | None, typer.Option(metavar="N,N,…", help="Ranks of the files that tell none, in name order: 0,1 or 0-7.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", metavar="", help="Print the diagnosis as JSON instead of text.")
    ] = False,
) -> None:
    """Say how good recordings are, what is missing in them and how to record better. Exit 1 if one is unusable.

    Every run below the paths is told apart and read; nothing is written.
    """
    import msgspec
    from rich.console import Console

    from advisor.cli._progress import show_progress
    from advisor.doctor.diagnosis import diagnose
    from reports import render_diagnosis

    with show_progress("Reading traces", visible=not as_json) as on_progress:
        diagnosis = diagnose(paths, ranks=read_ranks(ranks or ""), on_progress=on_progress)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(diagnosis), indent=2))
    else:
        render_diagnosis(diagnosis, Console())
    _fail_on_unusable(diagnosis)


def _fail_on_unusable(diagnosis: Diagnosis) -> None:
    unusable = [run.source for run in diagnosis.runs if run.quality == "unusable"]
    if unusable:
        count = f"{len(unusable)} of {len(diagnosis.runs)} runs are" if len(diagnosis.runs) > 1 else "The recording is"
        raise CheckFailedError(f"{count} unusable: {', '.join(unusable)}.")
