"""`ddp-advisor forecast`: a profiled job on other numbers of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from advisor.errors import UsageError


def forecast(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a report.json, that was analyzed.")],
    ranks: Annotated[str, typer.Option(metavar="N,N,…", help="Numbers of ranks, such as 8,16,64.")],
    compute: Annotated[
        Literal["constant", "divided"],
        typer.Option(help="constant: every rank keeps its batch; divided: the ranks share today's."),
    ] = "constant",
    as_json: Annotated[bool, typer.Option("--json", metavar="", help="Print the forecast as JSON.")] = False,
) -> None:
    """Forecast the step of an analyzed run on other numbers of ranks, with bands; nothing is measured."""
    from rich.console import Console

    from advisor.forecast import find_obstacle, forecast_ranks
    from advisor.pipeline import find_job
    from advisor.schema import encode_json, read_report
    from reports import render_forecast

    report = read_report(run)
    job, config = find_job(report), report.config
    obstacle = find_obstacle(job, config, report.baseline)
    if obstacle or job is None or config is None:
        raise UsageError(f"{report.source} cannot be forecast: {obstacle}.")
    answer = forecast_ranks(job, config, read_numbers(ranks), compute)
    if as_json:
        typer.echo(encode_json(answer), nl=False)
    else:
        render_forecast(answer, Console())


def read_numbers(text: str) -> list[int]:
    """The numbers of `8,16,64`.

    Raises:
        UsageError: One of them is no whole number.
    """
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and len(word) < 10 for word in words):
        raise UsageError(f"--ranks {text!r} is no list of numbers: write it as 8,16,64.")
    return [int(word) for word in words]
