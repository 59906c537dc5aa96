"""A `Diagnosis` on a terminal: each run's quality first, then what is in its files, what is missing, and the cure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from rich import box
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from advisor.readers.display import list_numbers
from advisor.schema import Diagnosis, Finding, FindingSeverity, Quality, RecordedRank, RunDiagnosis
from reports.text import UNKNOWN, format_bytes, visible

MAX_RANKS = 16
"""Lines of ranks that a terminal should show."""
MAX_DEVICES = 2
QUALITY_TITLES: Final[dict[Quality, str]] = {"good": "Good", "usable": "Usable", "unusable": "Unusable"}
_STYLES: Final[dict[Quality, str]] = {"good": "green", "usable": "yellow", "unusable": "red"}
_MARKS: Final[dict[FindingSeverity, tuple[str, str]]] = {
    "error": ("✗", "bold red"),
    "warning": ("!", "bold yellow"),
    "hint": ("·", "dim"),
}


def render_diagnosis(diagnosis: Diagnosis, console: Console) -> None:
    """Prints every run, then the files that belong to none, then the lines that record better."""
    if len(diagnosis.runs) > 1:
        console.print(Text(f"\n{visible(diagnosis.source)} holds {len(diagnosis.runs)} runs."))
    for run in diagnosis.runs:
        _print_run(run, console)
    _print_left_out(diagnosis.left_out, console)
    _print_recipes([run.recipe for run in diagnosis.runs if run.recipe], console)


def _print_run(run: RunDiagnosis, console: Console) -> None:
    colour = _STYLES[run.quality]
    body = Text(say_quality(run))
    facts = " · ".join(map(visible, describe_files(run)))
    if facts:
        body.append(f"\n{facts}", "dim")
    console.print()
    console.print(
        Panel(
            body,
            title=Text(QUALITY_TITLES[run.quality], f"bold {colour}"),
            title_align="left",
            subtitle=Text(visible(run.source), "dim"),
            subtitle_align="right",
            border_style=colour,
            padding=(0, 2),
        )
    )
    _print_ranks(run.ranks, console)
    for finding in run.findings:
        _print_finding(finding, run, console)
    _print_left_out(run.left_out, console)
    for note in run.notes:
        file = f" ({visible(note.file)})" if note.file else ""
        _print_beside(Text("·", "dim"), Text.assemble(visible(note.message), (file, "dim")), console)


def say_quality(run: RunDiagnosis) -> str:
    """What can be done with the run, in one sentence."""
    if run.quality == "unusable":
        return "Nothing can be advised from it; the first thing below says why."
    limits = sum(finding.severity == "warning" for finding in run.findings)
    if limits:
        return f"It can be analysed, with {'one limit' if limits == 1 else f'{limits} limits'}."
    return "It holds all that the analysis asks for."


def describe_files(run: RunDiagnosis) -> Iterator[str]:
    """What the files say of themselves: only what is known, each thing once."""
    if not run.ranks:
        return
    present = f"{len(run.ranks)} of {run.world_size}" if run.world_size else f"{len(run.ranks)}"
    yield f"{present} {'rank' if present == '1' else 'ranks'}"
    yield from _distinct(rank.backend for rank in run.ranks)
    devices = _distinct(device for rank in run.ranks for device in rank.devices)
    yield from devices[:MAX_DEVICES]
    if run.torch_version:
        yield f"torch {run.torch_version}"
    yield from _distinct(version for rank in run.ranks for version in _describe_versions(rank))
    yield from _distinct("plain JSON" if rank.packing == "json" else f"JSON in {rank.packing}" for rank in run.ranks)
    if any(rank.clock_ns > 1 for rank in run.ranks):
        yield "times in whole µs"


def format_version(number: str, unit: int, minor: int) -> str:
    """CUDA's and HIP's version numbers as they are spoken: 12060 is 12.6, and 60443483 is 6.4.

    Args:
        number: As the trace has it.
        unit: What one major version counts.
        minor: What one minor version counts.
    """
    if not number.isdecimal():
        return number
    return f"{int(number) // unit}.{int(number) % unit // minor}"


def _describe_versions(rank: RecordedRank) -> Iterator[str]:
    versions = rank.versions
    if "cuda_runtime_version" in versions:
        yield f"CUDA {format_version(versions['cuda_runtime_version'], 1000, 10)}"
    if "hip_runtime_version" in versions:
        yield f"HIP {format_version(versions['hip_runtime_version'], 10_000_000, 100_000)}"
    if "nccl_version" in versions:
        yield f"NCCL {versions['nccl_version']}"
    yield f"trace schema {versions['schemaVersion']}" if "schemaVersion" in versions else "no trace schema"


def _print_ranks(ranks: Sequence[RecordedRank], console: Console) -> None:
    if not ranks:
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column("rank", justify="right", min_width=4)
    table.add_column("file", overflow="ellipsis")
    for column in ("text", "events", "steps", "collectives", "sized"):
        table.add_column(column, justify="right", no_wrap=True)
    for rank in ranks[:MAX_RANKS]:
        more = f" and {len(rank.files) - 1} more" if len(rank.files) > 1 else ""
        table.add_row(
            f"{rank.rank}",
            Text(visible(rank.files[0].rpartition("/")[2]) + more),
            format_bytes(rank.num_bytes),
            f"{rank.num_events}",
            list_numbers(rank.steps, most=2) or UNKNOWN,
            f"{rank.num_collectives}",
            f"{rank.num_sized_collectives}",
        )
    console.print(table)
    if len(ranks) > MAX_RANKS:
        console.print(Text(f"the first {MAX_RANKS} of {len(ranks)} ranks", "dim"))


def _print_finding(finding: Finding, run: RunDiagnosis, console: Console) -> None:
    mark, style = _MARKS[finding.severity]
    message = Text(visible(finding.message), "bold")
    present = {rank.rank for rank in run.ranks}
    if set(finding.ranks) < present and finding.ranks:
        message.append(f" (ranks {list_numbers(finding.ranks)})", "not bold dim")
    _print_beside(Text(mark, style), message, console)
    for label, sentence in (("costs ", finding.cost), ("fix   ", finding.fix)):
        _print_beside(Text(f"  {label}", "dim"), Text(visible(sentence)), console)
    console.print()


def _print_beside(label: Text, text: Text, console: Console) -> None:
    """Prints a text whose lines all begin behind its label."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_row(label, text)
    console.print(grid)


def _print_left_out(sentences: Sequence[str], console: Console) -> None:
    for sentence in sentences:
        _print_beside(Text("✗", "bold red"), Text(f"left out: {visible(sentence)}"), console)


def _print_recipes(recipes: Sequence[str], console: Console) -> None:
    """Prints lines as they are, so that they can be pasted: no frame, and no break but their own."""
    for recipe in dict.fromkeys(recipes):
        console.print()
        console.print(Text("To record better", "bold underline"))
        console.print()
        console.print(Text(recipe, "cyan"), soft_wrap=True)


def _distinct(words: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(word for word in words if word))
