"""However a packed trace is damaged, it is read or refused in a sentence; no name can move the cursor."""

from __future__ import annotations

import gzip
from pathlib import Path
from tempfile import TemporaryDirectory

import zstandard
from hypothesis import given
from hypothesis import strategies as st

from advisor.errors import InputError
from advisor.readers.display import show_name, show_path
from advisor.readers.ranks import guess_rank, strip_numbers
from advisor.readers.run import read_run
from tests.trace_files import make_trace, pack_tar, pack_zip

FILES = {"run/rank0.json": make_trace(0), "run/rank1.json": make_trace(1)}
PACKED = (
    gzip.compress(make_trace()),
    zstandard.ZstdCompressor().compress(make_trace()),
    pack_zip(FILES),
    pack_tar(FILES),
    gzip.compress(pack_tar(FILES)),
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A packed trace with some bytes changed, left out or put in."""
    data = bytearray(draw(st.sampled_from(PACKED)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        until = draw(st.integers(at, min(len(data), at + 40)))
        data[at:until] = draw(st.binary(max_size=8))
    return bytes(data[: draw(st.integers(0, len(data)))]) if draw(st.booleans()) else bytes(data)


@given(damaged())
def test_damage_is_read_around_or_refused(data: bytes) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "rank0.json"
        path.write_bytes(data)
        try:
            run = read_run([path])
        except InputError as error:
            assert str(error).isprintable()
            assert str(error).endswith(".")
        else:
            assert all(len(trace.events) for trace in run.traces)


names = st.text(st.characters(exclude_categories=()), max_size=30)


@given(names)
def test_every_name_is_shown_in_one_line_and_says_something_or_nothing(name: str) -> None:
    assert show_name(name).isprintable()
    assert show_path(name).isprintable()
    assert show_name(show_name(name)) == show_name(name)
    rank = guess_rank(name)
    assert rank is None or rank >= 0
    assert strip_numbers(strip_numbers(name)) == strip_numbers(name)
