"""`ddp-advisor check`: does a job train on several ranks what it would train on one?"""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from advisor.cli._failures import require
from advisor.cli._progress import show_progress
from advisor.cli.run import NAMES, read_options
from advisor.errors import CheckFailedError


def check(
    workload: Annotated[
        str, typer.Argument(metavar="WORKLOAD", help=f"{NAMES}, or your own as module:factory or file.py:factory.")
    ],
    nproc: Annotated[int, typer.Option(min=2, metavar="N", help="Training processes on this machine.")] = 2,
    preset: Annotated[str, typer.Option(metavar="SIZE", help="tiny, small or large.")] = "tiny",
    option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Of the workload itself, such as head=tied.")
    ] = None,
    wrapper: Annotated[
        Literal["bucketed", "torch"], typer.Option(help="Our reimplementation, or torch's own DDP.")
    ] = "torch",
    accumulation_steps: Annotated[int, typer.Option(min=1, metavar="N", help="Micro-steps per optimizer step.")] = 1,
    comm_hook: Annotated[
        str, typer.Option(metavar="HOOK", help="none, allreduce, fp16, bf16 or powersgd:<rank>.")
    ] = "none",
    find_unused_parameters: Annotated[
        bool, typer.Option("--find-unused-parameters", metavar="", help="Search them in every step.")
    ] = False,
) -> None:
    """Prove a job correct on two ranks: the update, the replicas, the samples and the bytes. Exit 1 if one is wrong."""
    require("torch", "workloads", "check")
    from rich.console import Console
    from rich.text import Text

    from advisor.schema import DDPConfig
    from workloads.job import JobSpec
    from workloads.launch import check_run
    from workloads.requests import CheckRequest

    config = DDPConfig(
        world_size=nproc,
        backend="unknown",
        wrapper=wrapper,
        accumulation_steps=accumulation_steps,
        comm_hook=comm_hook,
        find_unused_parameters=find_unused_parameters,
    )
    job = JobSpec(workload=workload, preset=preset, options=read_options(option or []))
    with show_progress(f"Checking {workload} on {nproc} processes") as on_progress:
        results = check_run(CheckRequest(job=job, config=config), on_progress)
    console = Console()
    for result in results:
        sign, style = ("✓", "green") if result.passed else ("✗", "bold red")
        console.print(Text.assemble((sign, style), f" {result.name}: {result.message}"))
    failed = [result.name for result in results if not result.passed]
    if failed:
        raise CheckFailedError(f"{len(failed)} of {len(results)} checks of {workload} failed: {', '.join(failed)}.")
