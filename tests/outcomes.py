"""What may become of a damaged trace, checked."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from advisor.errors import InputError
from advisor.pipeline import analyze
from advisor.readers.chrome import read_chrome_trace
from advisor.readers.names import UNUSED_CATEGORIES
from advisor.readers.times import UNUSABLE, parse_time_ns
from advisor.tables import EVENT_COLUMNS, Trace
from reports import render_terminal
from tests.mutations import record_small_trace

Outcome = Literal["read", "read with notes", "refused"]
FILE = "rank1.json"
PEER = "rank0.json"
LONGEST_SENTENCE = 400


def judge_reading(damaged: bytes) -> Outcome:
    """Reads a damaged trace and fails unless it becomes one of the outcomes, and none in silence."""
    try:
        trace = read_chrome_trace(damaged, FILE, rank=1)
    except InputError as error:
        check_sentence(str(error))
        return "refused"
    check_table(trace)
    for note in trace.notes:
        check_sentence(note.message)
    if trace.notes:
        return "read with notes"
    assert len(trace.events) == count_events(damaged), "events were lost in silence"
    return "read"


def judge_analysis(damaged: bytes, folder: Path, *, alone: bool) -> Literal["report", "refused"]:
    """Analyses a damaged trace, alone or beside a whole one, and fails unless there is a report or a sentence."""
    paths = [folder / FILE, *([] if alone else [folder / PEER])]
    paths[0].write_bytes(damaged)
    (folder / PEER).write_bytes(record_small_trace("gloo", rank=0))
    try:
        check_report(paths)
    except InputError as error:
        check_sentence(str(error))
        return "refused"
    return "report"


def check_report(paths: list[Path]) -> None:
    report = analyze(paths, holistic=False)
    printed = io.StringIO()
    render_terminal(report, Console(file=printed, width=100))
    assert all(line.isprintable() for line in printed.getvalue().split("\n"))


def check_sentence(message: str) -> None:
    assert message.endswith(".")
    assert message.isprintable()
    assert len(message) <= LONGEST_SENTENCE


def check_table(trace: Trace) -> None:
    events = trace.events
    assert {name: str(dtype) for name, dtype in events.dtypes.items()} == EVENT_COLUMNS
    assert len(events) > 0
    assert (events["end_ns"] >= events["start_ns"]).all()
    assert events["start_ns"].is_monotonic_increasing
    for name in ("name", "category", "collective", "dtype", "process_group", "input_dims"):
        "".join(events[name].cat.categories).encode()


def count_events(text: bytes) -> int | None:
    """The complete events with a time that Python's own parser finds; None where the text is no JSON to it.

    An array may lack its bracket, as Chrome's format allows.
    """
    characters = text.decode(json.detect_encoding(text), errors="replace").removeprefix("\ufeff")
    for candidate in (characters, characters.rstrip(" \n,") + "]"):
        try:
            document = json.loads(candidate, strict=False, parse_float=str, parse_int=str)
        except (ValueError, RecursionError):
            continue
        events: Any = document if isinstance(document, list) else document.get("traceEvents")
        return sum(_is_complete(event) for event in events)
    return None


def _is_complete(event: Any) -> bool:
    if not isinstance(event, dict) or event.get("ph") != "X" or str(event.get("cat")) in UNUSED_CATEGORIES:
        return False
    return parse_time_ns(str(event.get("ts")).encode()) != UNUSABLE
