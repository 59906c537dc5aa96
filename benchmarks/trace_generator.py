"""Traces of any size from a real one: `python -m benchmarks.trace_generator SOURCE FOLDER --ranks 8 --mb 100`.

The steps of the source follow each other again and again, as if more of them had been recorded. Each time the clock
runs a little unevenly, so that durations differ from step to step and from rank to rank, while what was nested, ordered
or overlapping stays so. Numbers that link events move up from one repetition to the next. All else is the source's text
in the layout in which Kineto wrote it. The same arguments give the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from isal import igzip

Numbers: TypeAlias = npt.NDArray[np.int64]

MB = 1_000_000
PAUSE_NS = 100_000
"""Between two repetitions."""
KNOT_NS = 4_000_000
"""After so long the clock changes its pace."""
UNEVENNESS = 0.05
"""Standard deviation of the pace."""
GZIP_LEVEL = 2

_EVENTS = re.compile(r'"traceEvents"\s*:\s*\[(.*\})\s*\]\s*(?:,|\}\s*\Z)', re.DOTALL)
_RANK = re.compile(r'"rank": *(\d+)')
_WORLD_SIZE = re.compile(r'"world_size": *(\d+)')
_PROCESS = re.compile(r'"cat": "cpu_op".*?"pid": *(\d+)')
_NUMBERS = re.compile(
    r'"ts": *(?P<ts>[\d.]+)'
    r'|"dur": *(?P<dur>[\d.]+)'
    r'|(?:"correlation": *|"id": *(?=\d+, "pid"))(?P<correlation>\d+)'
    r'|"External id": *(?P<external>\d+)'
    r'|"Record function id": *(?P<record>\d+)'
    r'|"Ev Idx": *(?P<index>\d+)'
    r'|"Sequence number": *(?P<sequence>\d+)'
    r'|"Seq": *(?P<collective>\d+)'
    r"|ProfilerStep#(?P<step>\d+)"
)
"""Times, and numbers that are distinct within a recording."""


@dataclass(frozen=True)
class Template:
    """The text of events, with gaps where numbers change from one repetition to the next.

    Attributes:
        literals: The text around the gaps.
        numbers: What the source has there; times in ns.
        strides: How far each number moves from one repetition to the next; 0 for times.
        starts: The gaps that hold the start of an event.
        durations: The gaps that hold a duration; each follows its event's start.
        has_decimals: Whether times are written with three.
    """

    literals: list[str]
    numbers: Numbers
    strides: Numbers
    starts: Numbers
    durations: Numbers
    has_decimals: bool

    def repeat(self, times: int, seed: int) -> Iterator[str]:
        """The text of one repetition after the other."""
        random = np.random.default_rng(seed)
        start_ns = self.numbers[self.starts]
        begun_with = self.starts.searchsorted(self.durations) - 1
        end_ns = start_ns[begun_with] + self.numbers[self.durations]
        first_ns = int(start_ns.min())
        span_ns = int(max(end_ns.max(), start_ns.max())) - first_ns + PAUSE_NS
        for number in range(times):
            clock = UnevenClock(first_ns, span_ns, random)
            numbers = self.numbers + number * self.strides
            started_ns = self._round(clock.read(start_ns) + number * span_ns)
            numbers[self.starts] = started_ns
            numbers[self.durations] = self._round(clock.read(end_ns) + number * span_ns) - started_ns[begun_with]
            yield self._fill(numbers)

    def _round(self, times_ns: Numbers) -> Numbers:
        return times_ns if self.has_decimals else times_ns // 1000 * 1000

    def _fill(self, numbers: Numbers) -> str:
        words = list(map(str, numbers.tolist()))
        for gap in np.concatenate([self.starts, self.durations]).tolist():
            digits = words[gap]
            whole, below = digits[:-3] or "0", digits[-3:].zfill(3)
            words[gap] = f"{whole}.{below}" if self.has_decimals else whole
        pieces = [*self.literals]
        filled = [""] * (2 * len(pieces) - 1)
        filled[::2], filled[1::2] = pieces, words
        return "".join(filled)


class UnevenClock:
    """A clock that runs at a changing pace and is right again at the end."""

    def __init__(self, first_ns: int, span_ns: int, random: np.random.Generator) -> None:
        """Draws the pace of every stretch of the span."""
        num_stretches = span_ns // KNOT_NS + 1
        self._true_ns = np.linspace(0, span_ns, num_stretches + 1)
        paces = np.exp(random.normal(0, UNEVENNESS, num_stretches))
        self._shown_ns = np.append(0, np.cumsum(paces)) * (span_ns / paces.sum())
        self._first_ns = first_ns

    def read(self, times_ns: Numbers) -> Numbers:
        """What it shows at these times."""
        shown = np.interp(times_ns - self._first_ns, self._true_ns, self._shown_ns)
        shown_ns: Numbers = np.rint(shown).astype(np.int64) + self._first_ns
        return shown_ns


def generate_run(source: Path, folder: Path, *, num_ranks: int, num_bytes: int, compress: bool = False) -> list[Path]:
    """Writes the traces of a run in which every rank does what a rank of the source did.

    Args:
        source: A folder of Kineto traces, or of a run of ours; those of fewer ranks than `num_ranks` are used again.
        folder: Where `rank<number>.json` or `.json.gz` are written.
        num_ranks: How many.
        num_bytes: Of JSON text for each; whole repetitions are written, at least one.
        compress: Whether to write gzip.
    """
    texts = sorted(map(_read_text, _list_traces(source)), key=_find_rank)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for rank in range(num_ranks):
        text = _rewrite_rank(texts[rank % len(texts)], rank, num_ranks, rank // len(texts))
        events = _EVENTS.search(text)
        if events is None:
            raise ValueError(f"{source} holds a trace that Kineto did not write")
        template = build_template(events[1])
        path = folder / f"rank{rank}.json{'.gz' if compress else ''}"
        with igzip.open(path, "wt", GZIP_LEVEL) if compress else path.open("w") as file:
            file.write(text[: events.start(1)])
            for number, repetition in enumerate(template.repeat(max(1, round(num_bytes / len(events[1]))), rank)):
                file.write(("," if number else "") + repetition)
            file.write(text[events.end(1) :])
        paths.append(path)
    return paths


def build_template(events: str) -> Template:
    """Finds the numbers in the text of events."""
    matches = list(_NUMBERS.finditer(events))
    kinds = np.array([match.lastgroup for match in matches])
    words = [match[match.lastgroup or 0] for match in matches]
    has_decimals = any("." in word for word, kind in zip(words, kinds, strict=True) if kind == "ts")
    is_time = np.isin(kinds, ("ts", "dur"))
    numbers = np.array([_scale(word) if time else int(word) for word, time in zip(words, is_time, strict=True)])
    strides = np.zeros(len(matches), dtype=np.int64)
    for kind in set(kinds[~is_time].tolist()):
        chosen = kinds == kind
        strides[chosen] = int(np.ptp(numbers[chosen])) + 1
    edges = [0, *(edge for match in matches for edge in match.span(match.lastgroup or 0)), len(events)]
    return Template(
        literals=[events[start:end] for start, end in zip(edges[::2], edges[1::2], strict=True)],
        numbers=numbers,
        strides=strides,
        starts=np.flatnonzero(kinds == "ts"),
        durations=np.flatnonzero(kinds == "dur"),
        has_decimals=has_decimals,
    )


def _scale(word: str) -> int:
    whole, _, below = word.partition(".")
    return int(whole + below[:3].ljust(3, "0"))


def _list_traces(source: Path) -> list[Path]:
    traces = (path for path in source.iterdir() if path.name.endswith((".json", ".json.gz")))
    return sorted(path for path in traces if path.name != "manifest.json")


def _read_text(path: Path) -> str:
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()


def _find_rank(text: str) -> int:
    match = _RANK.search(text)
    return int(match[1]) if match else 0


def _rewrite_rank(text: str, rank: int, num_ranks: int, use: int) -> str:
    """Makes it the trace of another rank of another job, in a process of its own."""
    world_size = _WORLD_SIZE.search(text)
    old = int(world_size[1]) if world_size else num_ranks
    old_ranks, new_ranks = (", ".join(map(str, range(size))) for size in (old, num_ranks))
    process = _PROCESS.search(text)
    pid = int(process[1]) if process else 0
    for pattern, replacement in (
        (_RANK.pattern, f'"rank": {rank}'),
        (rf'"(world_size|Group size|pg_size)": *{old}\b', rf'"\1": {num_ranks}'),
        (rf'("ranks": *|"Process Group Ranks": *")\[{old_ranks}\]', rf"\1[{new_ranks}]"),
        (rf'("[pt]id": *){pid}\b', rf"\g<1>{pid + use}"),
    ):
        text = re.sub(pattern, replacement, text)
    return text


def main() -> None:
    """Takes the source and what to make of it from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="a folder of Kineto traces")
    parser.add_argument("folder", type=Path, help="where to write")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--mb", type=float, default=100, help="megabytes of JSON text a rank")
    parser.add_argument("--gzip", action="store_true")
    given = parser.parse_args()
    paths = generate_run(
        given.source, given.folder, num_ranks=given.ranks, num_bytes=int(given.mb * MB), compress=given.gzip
    )
    print(*paths, sep="\n")


if __name__ == "__main__":
    main()
