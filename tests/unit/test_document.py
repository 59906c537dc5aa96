"""What is lost of damaged text, what is not, and that the note says so."""

from __future__ import annotations

import io
import json
import math

import pytest

from advisor.errors import InputError
from advisor.readers import text as blocks
from advisor.readers.chrome import read_chrome_trace
from advisor.tables import Trace
from advisor.timeline import build_timeline
from tests.trace_builders import NODE, RankTrace

NUM_EVENTS = 200


def record(process: int = 4000) -> bytes:
    """Steps 3 to 6 with 49 nodes of backward each, called `node310` to `node358` in the first."""
    trace = RankTrace()
    for step in range(3, 7):
        trace.add("user_annotation", f"ProfilerStep#{step}", 500 * step, 500 * step + 499, pid=process)
        for place in range(10, 59):
            start = 500 * step + 8 * place
            trace.add("cpu_op", f"{NODE}node{step}{place}", start, start + 5, pid=process)
    return trace.to_json()


def read(text: bytes) -> Trace:
    return read_chrome_trace(io.BytesIO(text), "rank0.json")


def message(trace: Trace) -> str:
    return " ".join(note.message for note in trace.notes)


@pytest.fixture(params=[2**18, 500], ids=["at once", "in small blocks"])
def _block_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", request.param)


pytestmark = pytest.mark.usefixtures("_block_bytes")


def test_a_whole_file_is_read_without_a_note() -> None:
    trace = read(record())
    assert (len(trace.events), trace.notes, trace.damaged_ns) == (NUM_EVENTS, (), ())


def test_a_cut_file_gives_what_is_whole_and_names_the_steps_that_are_not() -> None:
    whole = record()
    trace = read(whole[: whole.index(b"node530") + 20])
    assert len(trace.events) == 121
    assert message(trace) == (
        "The file ends early: what should follow is missing, 95 bytes hold no whole event; step 5 is incomplete and "
        "not counted."
    )


def test_a_hole_costs_its_events_and_its_step() -> None:
    whole = record()
    trace = read(whole[: whole.index(b"node430")] + whole[whole.index(b"node431") + 10 :])
    assert len(trace.events) == NUM_EVENTS - 2
    assert "in 1 places hold no whole event; step 4 is incomplete and not counted." in message(trace)


def test_zeros_in_place_of_text_are_a_hole() -> None:
    whole = record()
    start, end = whole.index(b"node430"), whole.index(b"node440")
    trace = read(whole[:start] + bytes(end - start) + whole[end:])
    assert len(trace.events) == NUM_EVENTS - 11
    assert "step 4 is incomplete" in message(trace)


@pytest.mark.parametrize("field", ["ts", "dur"])
@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30, None, "soon"])
def test_events_without_a_possible_time_cost_their_steps(field: str, value: object) -> None:
    document = json.loads(record())
    for event in document["traceEvents"]:
        if event["name"].endswith(("node430", "node431")):
            event[field] = value
    trace = read(json.dumps(document).encode())
    assert len(trace.events) == NUM_EVENTS - 2
    assert "Events without a possible time were left out, 2 of them; step 4 is incomplete and not counted." in message(
        trace
    )
    assert [step.number for step in build_timeline(trace).steps] == [3, 5, 6]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"node430", b"node\x1b430"),
        (b"node430", b"C:\\Users"),
        (b"node430", b'node<"430">'),
        (b"node430", b"node\xff430"),
        (b"node430", b"node\x00430"),
        (b'node430", ', b'node430", "x": NaN, '),
    ],
)
def test_what_writers_get_wrong_is_mended_without_a_loss(old: bytes, new: bytes) -> None:
    trace = read(record().replace(old, new))
    assert len(trace.events) == NUM_EVENTS
    assert "it was mended" in message(trace)
    assert trace.damaged_ns == ()


def test_an_array_may_lack_its_bracket_but_a_document_may_not() -> None:
    events = json.dumps(json.loads(record())["traceEvents"]).encode()
    assert read_chrome_trace(events[:-1], "a.json", 0).notes == ()
    assert read_chrome_trace(events[:-1] + b",\n", "a.json", 0).notes == ()
    whole = record()
    assert "ends early" in message(read(whole[: whole.rindex(b"]")]))


def test_a_damaged_head_and_tail_keep_what_is_whole_in_them() -> None:
    info = b'{"distributedInfo": {"rank": 3, "world_size": 8}, "x": oops, "traceEvents": '
    events = record()[record().index(b"[") :]
    trace = read(info + events)
    assert (trace.rank, trace.world_size, len(trace.events)) == (3, 8, NUM_EVENTS)
    assert "before its events" in message(trace)
    trace = read(b'{"traceEvents": ' + events[:-1] + b', "distributedInfo": {"rank": 2}, "x": oops}')
    assert (trace.rank, len(trace.events)) == (2, NUM_EVENTS)
    assert "after its events" in message(trace)


def test_two_recordings_in_one_file_are_refused() -> None:
    with pytest.raises(InputError, match="more than one recording"):
        read(record() + record())


@pytest.mark.parametrize("num_ranks", [2, 20])
def test_the_ranks_of_several_processes_are_refused(num_ranks: int) -> None:
    events = [event for rank in range(num_ranks) for event in json.loads(record(4000 + rank))["traceEvents"]]
    with pytest.raises(InputError, match=f"holds the events of {num_ranks} processes"):
        read_chrome_trace(json.dumps(events).encode(), "a.json", 0)


def test_one_damaged_process_id_is_no_second_rank() -> None:
    whole = record()
    at = whole.index(b'"pid": 4000')
    assert len(read_chrome_trace(whole[:at] + b'"pid": 4001' + whole[at + 11 :], "a.json", 0).events) == NUM_EVENTS
