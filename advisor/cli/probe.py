"""`ddp-advisor probe`: how long collectives of every size take between processes of this machine."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from advisor.cli._again import spell_command
from advisor.cli._failures import require
from advisor.cli._progress import show_progress
from advisor.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from advisor.schema import Ladder
    from workloads.requests import ProbedKind

UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0}
TRIAL_BYTES = 2**18
"""What must fit on a disk for a ladder to be measured: more than one takes."""


def probe(
    nproc: Annotated[int, typer.Option(min=2, metavar="N", help="Processes on this machine.")] = 2,
    collective: Annotated[
        list[str],
        typer.Option(
            metavar="NAME,…", help="Which: all_reduce, broadcast, all_gather, reduce_scatter. Several share the budget."
        ),
    ] = ["all_reduce"],  # noqa: B006  # typer copies it
    budget: Annotated[str, typer.Option(metavar="TIME", help="How long to measure: 60s, 5m.")] = "60s",
    backend: Annotated[
        Literal["auto", "gloo", "nccl"], typer.Option(help="auto takes NCCL where there are enough GPUs.")
    ] = "auto",
    device: Annotated[
        Literal["auto", "cpu", "cuda"], typer.Option(help="auto is the GPU for NCCL and the CPU for gloo.")
    ] = "auto",
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write; a run folder gets its probe.json.")] = Path(
        "probe.json"
    ),
) -> None:
    """Time collectives on arrays of 1 KiB to 64 MiB, alone and two in flight, idle and beside computation.

    The time goes where the answer is still uncertain. Analyze a run with its probe.json, or with --probe FILE.
    """
    require("torch", "workloads", "probe")
    from rich.console import Console

    from advisor.schema import DDPConfig, write_json
    from workloads.launch import probe_run
    from workloads.requests import ProbeRequest

    kinds = read_collectives(collective)
    file = choose_file(out)
    config = DDPConfig(world_size=nproc, backend="unknown" if backend == "auto" else backend, wrapper="unknown")
    request = ProbeRequest(config=config, kinds=kinds, budget_s=read_budget(budget), device=device)
    with show_progress(f"Probing {nproc} processes") as on_progress:
        ladder = probe_run(request, on_progress)
    if not ladder.points:
        raise UsageError(f"Nothing could be measured within --budget {budget!r}: give it more time, such as 60s.")
    console = Console()
    console.print(tabulate(ladder))
    for sentence in ladder.left_out:
        console.print(sentence, markup=False, highlight=False)
    write_json(ladder, file)
    typer.echo(f"\nWritten to {file}.")
    typer.echo(f"Use it:  {spell_command('analyze', 'RUN', '--probe', file)}")


def choose_file(out: Path) -> Path:
    """The file to write: `out`, or its probe.json where it is a folder.

    Raises:
        UsageError: Nothing can be written there, which is better known before the measurement.
    """
    file = out / "probe.json" if out.is_dir() else out
    if not file.parent.is_dir():
        raise UsageError(f"The probe cannot be written to {file}, because there is no folder {file.parent}: make it.")
    if file.exists() and not file.is_file():
        raise UsageError(f"The probe cannot be written to {file}, which is no file: choose another with --out.")
    try:
        with tempfile.TemporaryFile(dir=file.parent) as trial:
            trial.write(bytes(TRIAL_BYTES))
    except OSError as error:
        raise UsageError(
            f"The probe cannot be written to {file} ({error.strerror}): choose another place with --out."
        ) from error
    return file


def read_collectives(words: Sequence[str]) -> tuple[ProbedKind, ...]:
    """The collectives of `all_reduce,broadcast` or of the option given several times, each once, however spelled.

    Raises:
        UsageError: The probe does not time one of them.
    """
    from workloads.requests import PROBED_KINDS

    by_letters = {_keep_letters(kind): kind for kind in PROBED_KINDS}
    names = [name.strip() for word in words for name in word.split(",")]
    unknown = [name for name in names if _keep_letters(name) not in by_letters]
    if unknown:
        raise UsageError(f"--collective {unknown[0]!r} is not timed by the probe: choose of {', '.join(PROBED_KINDS)}.")
    return tuple(dict.fromkeys(by_letters[_keep_letters(name)] for name in names))


def read_budget(text: str) -> float:
    """Seconds of `60`, `60s`, `1.5m` or `2min`.

    Raises:
        UsageError: It is written otherwise, or is nothing.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip())
    seconds = float(found[1]) * UNITS_S.get(found[2], 0.0) if found else 0.0
    if not seconds:
        raise UsageError(f"--budget {text!r} is no time: write it as 60s or 2m.")
    return seconds


def tabulate(ladder: Ladder) -> Table:
    """A line for each kind and dtype: latency, bandwidth, kinks, and what sharing and overlap cost."""
    from rich import box
    from rich.table import Table

    from advisor.comm_model import fit_ladder, measure_overlap
    from reports.text import format_bandwidth, format_bytes, format_estimate_ns, format_factor

    table = Table(
        *("", "latency", "bus bandwidth", "kinks", "two in flight", "slows compute", "slowed by compute"),
        title=f"collectives on {ladder.world_size} ranks, {ladder.backend}",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    table.columns[0].no_wrap = True
    table.columns[2].min_width = len("bandwidth")
    computing = {(point.kind, point.dtype) for point in ladder.points if point.under_compute and point.in_flight == 1}
    for fit in fit_ladder(ladder):
        model = fit.model
        overlap = measure_overlap(ladder, model.kind, model.dtype)
        cells = (
            format_estimate_ns(model.segments[0].alpha_ns if model.latency_known else None),
            format_bandwidth(model.busbw_bytes_per_s),
            ", ".join(map(format_bytes, model.kinks_bytes)) or "none",
            format_factor(overlap.two_in_flight),
            format_factor(overlap.compute_slowdown),
            format_factor(fit.communication_slowdown if (model.kind, model.dtype) in computing else None),
        )
        table.add_row(f"{model.kind}\n{model.dtype}", *(cell.replace(" [", "\n[") for cell in cells))
    return table


def _keep_letters(name: str) -> str:
    return re.sub(r"[-_ ]", "", name.lower())
