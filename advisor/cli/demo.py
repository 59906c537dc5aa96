"""`ddp-advisor demo`: the whole job on this machine, from two training processes to measured advice."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from advisor.cli._failures import require
from advisor.cli._progress import show_progress

if TYPE_CHECKING:
    from advisor.schema import Report

WORLD_SIZE = 2
PROFILED_STEPS = 16
BUDGET_S = 60.0


def demo(
    out: Annotated[Path | None, typer.Option(metavar="RUN", help="Run folder; default runs/gpt-<time>.")] = None,
    preset: Annotated[str, typer.Option(hidden=True)] = "small",
    budget: Annotated[float, typer.Option(hidden=True)] = BUDGET_S,
) -> None:
    """Train a small transformer on two processes, find out what holds it back, and measure the advice.

    The bucket cap is left unset, as most people leave it. Profile and measurement both use our own wrapper, whose
    marks tell exactly when each bucket was ready.
    """
    require("torch", "workloads", "demo")
    from rich.console import Console

    from advisor.cli._files import choose_folder, tell_where, write_report
    from advisor.cli.proof import prove
    from advisor.pipeline import analyze
    from advisor.schema import DDPConfig
    from reports import render_sweep, render_terminal
    from workloads.job import JobSpec
    from workloads.launch import record_run
    from workloads.requests import RecordRequest

    console = Console()
    job = JobSpec(workload="gpt", preset=preset)
    request = RecordRequest(
        job=job,
        config=DDPConfig(world_size=WORLD_SIZE, backend="unknown", wrapper="bucketed"),
        out=None if out is None else str(out),
        num_steps=PROFILED_STEPS,
        command=("ddp-advisor", *sys.argv[1:]),
    )
    console.print(f"Training gpt ({preset}) on {WORLD_SIZE} processes, wrapped in BucketedDDP, bucket_cap_mb unset …")
    with show_progress("Starting the processes") as on_progress:
        run = record_run(request, on_progress)
    with show_progress("Reading the traces") as on_progress:
        report = analyze([run], on_progress=on_progress)
    folder = choose_folder([run], None)
    write_report(report, folder)
    render_terminal(report, console)

    console.print(f"Measuring for {budget:.0f} s whether the prediction holds, without the profiler …")
    with show_progress("Starting the processes") as on_progress:
        report = prove(report, job, run, budget, on_progress)
    write_report(report, folder)
    render_sweep(report, console)
    console.print(say_outcome(report))
    tell_where(folder)


def say_outcome(report: Report) -> str:
    """What came of the measurement, in a sentence.

    Changes are compared, not steps: the predicted ones carry the profiler's own cost, the measured ones do not.
    """
    from advisor.cli.proof import is_measurable

    if report.sweep is None:
        return "Replay knows no other setting for this run, so there was nothing to measure."
    reference, *_, arm = report.sweep.arms
    if arm.ratio is None or arm.predicted_ns is None or reference.predicted_ns is None:
        return f"{arm.name} could not be measured."
    predicted = arm.predicted_ns.value / reference.predicted_ns.value - 1
    changes = f"{arm.name}: predicted {100 * predicted:+.1f} %, measured {100 * (arm.ratio.value - 1):+.1f} %"
    outcome = "a tie with today's setting" if arm.outcome == "tie" else arm.outcome
    measured = [advice for advice in report.recommendations if is_measurable(advice)]
    if measured:
        return f"{changes}, {outcome}: the advice is {measured[0].status}."
    advised = "No other setting for the same batch" if report.recommendations else "No change"
    return f"{changes}, {outcome}. {advised} was advised; this one had the shortest predicted step."
