"""`ddp-advisor run`: train a reference workload, or one's own, under the profiler."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from advisor.cli._again import spell_command
from advisor.cli._failures import require
from advisor.cli._progress import show_progress
from advisor.errors import UsageError
from workloads.job import WORKLOADS, JobSpec, Precision

NAMES = ", ".join(workload.name for workload in WORKLOADS)
SETTINGS = "Settings of DistributedDataParallel"


def run(
    workload: Annotated[
        str, typer.Argument(metavar="WORKLOAD", help=f"{NAMES}, or your own as module:factory or file.py:factory.")
    ],
    nproc: Annotated[int, typer.Option(min=1, metavar="N", help="Training processes on this machine.")] = 2,
    preset: Annotated[
        str, typer.Option(metavar="SIZE", help="tiny for tests, small for two CPU cores, large for GPUs.")
    ] = "small",
    option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Of the workload itself, such as head=tied.")
    ] = None,
    precision: Annotated[
        Precision, typer.Option(help="bf16 casts the model; autocast and amp only its computation.")
    ] = "float32",
    steps: Annotated[int, typer.Option(min=1, metavar="N", help="Optimizer steps to record.")] = 16,
    out: Annotated[
        Path | None, typer.Option(metavar="RUN", help="New folder to record into; default runs/<workload>-<time>.")
    ] = None,
    backend: Annotated[
        Literal["auto", "gloo", "nccl"],
        typer.Option(help="auto takes NCCL where there are enough GPUs.", rich_help_panel=SETTINGS),
    ] = "auto",
    device: Annotated[
        Literal["auto", "cpu", "cuda"], typer.Option(help="auto is the GPU for NCCL and the CPU for gloo.")
    ] = "auto",
    wrapper: Annotated[
        Literal["bucketed", "torch"],
        typer.Option(help="Our marked reimplementation, or torch's own DDP.", rich_help_panel=SETTINGS),
    ] = "torch",
    bucket_cap_mb: Annotated[
        float | None,
        typer.Option(min=0, metavar="MIB", help="Unset is 1 MiB, then 25, as in torch.", rich_help_panel=SETTINGS),
    ] = None,
    accumulation_steps: Annotated[
        int, typer.Option(min=1, metavar="N", help="Micro-steps per optimizer step.", rich_help_panel=SETTINGS)
    ] = 1,
    comm_hook: Annotated[
        str,
        typer.Option(
            metavar="HOOK", help="none, allreduce, fp16, bf16, powersgd:<rank> or noop.", rich_help_panel=SETTINGS
        ),
    ] = "none",
    gradient_as_bucket_view: Annotated[
        bool,
        typer.Option(
            "--gradient-as-bucket-view", metavar="", help="Gradients are views of buckets.", rich_help_panel=SETTINGS
        ),
    ] = False,
    static_graph: Annotated[
        bool, typer.Option("--static-graph", metavar="", help="The graph never changes.", rich_help_panel=SETTINGS)
    ] = False,
    find_unused_parameters: Annotated[
        bool,
        typer.Option(
            "--find-unused-parameters", metavar="", help="Search them in every step.", rich_help_panel=SETTINGS
        ),
    ] = False,
) -> None:
    """Train on this machine under the profiler and leave a run folder to analyze."""
    require("torch", "workloads", "run")
    from advisor.schema import DDPConfig
    from workloads.launch import record_run
    from workloads.requests import RecordRequest

    config = DDPConfig(
        world_size=nproc,
        backend="unknown" if backend == "auto" else backend,
        wrapper=wrapper,
        bucket_cap_mb=bucket_cap_mb,
        comm_hook=comm_hook,
        accumulation_steps=accumulation_steps,
        gradient_as_bucket_view=gradient_as_bucket_view,
        static_graph=static_graph,
        find_unused_parameters=find_unused_parameters,
    )
    request = RecordRequest(
        job=JobSpec(workload=workload, preset=preset, precision=precision, options=read_options(option or [])),
        config=config,
        out=None if out is None else str(out),
        num_steps=steps,
        device=device,
        command=("ddp-advisor", *sys.argv[1:]),
    )
    with show_progress(f"Training {workload} on {nproc} processes") as on_progress:
        folder = record_run(request, on_progress)
    typer.echo(f"Recorded {folder}.")
    typer.echo(f"Analyze it:  {spell_command('analyze', folder)}")


def read_options(options: list[str]) -> dict[str, str]:
    """Reads name=value pairs.

    Raises:
        UsageError: One has no name or no value.
    """
    pairs = [option.partition("=") for option in options]
    for name, equals, _ in pairs:
        if not (name and equals):
            raise UsageError(f"The option {name!r} of the workload has no value: write it as name=value.")
    return {name: value for name, _, value in pairs}
