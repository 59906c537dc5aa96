"""`ddp-advisor report`: a report that was written before, as text or as a page."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from advisor.cli._failures import require
from advisor.schema import Framework


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a report.json.")],
    serve: Annotated[
        bool, typer.Option("--serve", metavar="", help="Open it as a Streamlit page in the browser.")
    ] = False,
    framework: Annotated[Framework, typer.Option(help="What the code beside the advice is for.")] = "torch",
) -> None:
    """Show a report that `analyze` wrote."""
    from advisor.schema import read_report

    known = read_report(run)
    if serve:
        require("streamlit", "app", "report --serve")
        from reports.serve import streamlit_command

        command = streamlit_command(run)
        os.execv(command[0], command)
    from rich.console import Console

    from reports import render_terminal

    render_terminal(known, Console(), framework)
