"""`ddp-advisor demo`: the whole job on this machine, from two training processes to measured advice."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from advisor.cli._failures import require

WORLD_SIZE = 2


def demo(
    out: Annotated[Path | None, typer.Option(metavar="RUN", help="Run folder; default runs/gpt-<time>.")] = None,
    preset: Annotated[str, typer.Option(hidden=True)] = "small",
) -> None:
    """Train a small transformer on two processes, find out what holds it back, and measure the advice.

    The profiled run and the measurement both use our own wrapper, whose marks are the ground truth of each bucket.
    """
    require("torch", "workloads", "demo")
