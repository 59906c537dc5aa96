"""What was lost of a damaged trace: how much text, when, and which steps.

The events of a file follow each other by thread, then those of the device; within each part they are sorted by start,
in stretches at least. So what a hole has swallowed, and what has no possible time, began between its neighbours or,
where the order jumps there, after the one or before the other. Of what should follow where a file ends early, nothing
is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from advisor.readers.document import Damage
from advisor.readers.names import ANNOTATION, COLLECTIVE_OP, GLOO_SPAN, KERNEL, MEMORY, RUNTIME, find_step_number
from advisor.schema import QualityNote

Times: TypeAlias = npt.NDArray[np.int64]
Spans: TypeAlias = tuple[tuple[int, int], ...]

NUM_NEIGHBOURS = 16
"""Rows on either side of a hole that tell when it was: those of the device are sorted only roughly."""
FULL_FRACTION = 0.9
"""A step of a cut file with fewer launches than this share of the fullest one's has lost some."""
MOST_STEPS_SHOWN = 8
WIDEST_GAP = 1000
"""More steps in a row are not missing: one of the numbers around them was damaged, or recording paused."""


def find_damaged_times(damage: Damage, events: pd.DataFrame, places: Times, has_devices: bool) -> Spans:
    """When events were lost, as intervals [start, end) that may overlap.

    Args:
        damage: What was wrong with the text.
        events: The events that were kept.
        places: Their rows in the order of the file.
        has_devices: Whether the file names a GPU, whose events come last.
    """
    lost_at = dict.fromkeys([*(hole.row for hole in damage.holes), *damage.unusable])
    if not lost_at and not damage.ends_early:
        return ()
    earliest, latest = (times[places] for times in _reach(events))
    first, last = int(earliest.min()), int(latest.max()) + 1
    if damage.ends_early and _lacks_a_part(events, has_devices):
        return ((first, last),)
    spans: list[tuple[int, int]] = []
    for row in lost_at:
        if row == len(events) and damage.ends_early:
            continue
        before = int(earliest[max(0, row - NUM_NEIGHBOURS) : row].min(initial=last))
        after = int(latest[row : row + NUM_NEIGHBOURS].max(initial=first))
        spans += [(before, after)] if before < after else [(first, after + 1), (before, last)]
    if damage.ends_early:
        spans += [(int(earliest[-NUM_NEIGHBOURS:].min()), last), *_find_emptier_steps(events)]
    return tuple(dict.fromkeys(spans))


def list_steps(events: pd.DataFrame) -> list[tuple[int, int, int]]:
    """Number, start and end of every step of the profiler."""
    names = events["name"].cat
    number_of = {name: number for name in names.categories if (number := find_step_number(name)) is not None}
    is_step = np.array([name in number_of for name in names.categories], dtype=bool)[names.codes]
    rows = events.loc[is_step & events["category"].isin(ANNOTATION), ["name", "start_ns", "end_ns"]]
    numbers = [number_of[name] for name in rows["name"]]
    return list(zip(numbers, rows["start_ns"].tolist(), rows["end_ns"].tolist(), strict=True))


def find_damaged_steps(events: pd.DataFrame, spans: Spans) -> list[int]:
    """The numbers of the profiler's steps that overlap damage, and of those that are missing between others."""
    steps = list_steps(events)
    if not steps or not spans:
        return []
    numbers = {number for number, _, _ in steps}
    gaps = [(before, after) for before, after in pairwise(sorted(numbers)) if after - before <= WIDEST_GAP]
    missing = {number for before, after in gaps for number in range(before + 1, after)}
    hit = {number for number, start, end in steps if any(start < stop and begin < end for begin, stop in spans)}
    return sorted(hit | missing)


def note_damage(damage: Damage, file: str, steps: Sequence[int]) -> list[QualityNote]:
    """What a person should know; `steps` are those that are not counted."""
    num_bytes = sum(hole.num_bytes for hole in damage.holes)
    left_out = f"; {_list_steps(steps)} incomplete and not counted" if steps else ""
    sentences = [
        (
            damage.ends_early,
            f"The file ends early: what should follow is missing, {num_bytes} bytes hold no whole event{left_out}.",
        ),
        (
            bool(damage.holes) and not damage.ends_early,
            f"The file is damaged: {num_bytes} bytes in {len(damage.holes)} places hold no whole event{left_out}.",
        ),
        (damage.head_is_damaged, "The file is damaged before its events: what it says of the run may be missing."),
        (damage.tail_is_damaged, "The file is damaged after its events: what it says of the run may be missing."),
        (
            damage.is_mended and not damage.holes and not damage.ends_early,
            "The file is not quite JSON (control characters, stray backslashes or commas, quotes inside names, NaN, or "
            "bytes that are not UTF-8): it was mended.",
        ),
        (
            bool(damage.unusable),
            f"Events without a possible time were left out, {len(damage.unusable)} of them"
            f"{'' if damage.holes or damage.ends_early else left_out}.",
        ),
    ]
    return [QualityNote(message=sentence, file=file) for applies, sentence in sentences if applies]


def _list_steps(steps: Sequence[int]) -> str:
    shown = ", ".join(map(str, steps[:MOST_STEPS_SHOWN])) + (", …" if len(steps) > MOST_STEPS_SHOWN else "")
    return f"step {shown} is" if len(steps) == 1 else f"steps {shown} are"


def _reach(events: pd.DataFrame) -> tuple[Times, Times]:
    """The earliest and the latest start that belongs to each event: its own, or its launch's on the host."""
    start_ns = events["start_ns"].to_numpy()
    launches = events[events["category"].isin(RUNTIME) & (events["correlation"] >= 0)].drop_duplicates("correlation")
    launch_of = launches.set_index("correlation")["start_ns"]
    launch_ns = launch_of.reindex(events["correlation"], fill_value=np.iinfo(np.int64).max).to_numpy()
    on_device = events["category"].isin(KERNEL | MEMORY).to_numpy()
    return np.where(on_device, np.minimum(start_ns, launch_ns), start_ns), start_ns


def _find_emptier_steps(events: pd.DataFrame) -> Spans:
    """Steps with fewer launches than the fullest: the device events written first are not always the earliest."""
    launch_ns = np.sort(events["start_ns"][events["category"].isin(RUNTIME)].to_numpy())
    steps = [(start, end) for _, start, end in list_steps(events)]
    counts = [np.diff(np.searchsorted(launch_ns, step))[0] for step in steps]
    return tuple(step for step, count in zip(steps, counts, strict=True) if count < FULL_FRACTION * max(counts))


def _lacks_a_part(events: pd.DataFrame, has_devices: bool) -> bool:
    """Whether whole threads or devices are missing at the end: no GPU was reached, or collectives were never run."""
    if has_devices:
        return not events["category"].isin(KERNEL).any()
    num_launches, num_spans = (
        sum(count for name, count in events["name"].value_counts().items() if pattern.match(str(name)))
        for pattern in (COLLECTIVE_OP, GLOO_SPAN)
    )
    return num_launches > num_spans
