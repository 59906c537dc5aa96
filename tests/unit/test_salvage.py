from __future__ import annotations

import pytest

from advisor.readers.salvage import find_whole_events, mend, mend_names

A, B = b'{"ph": "X", "ts": 1}', b'{"ph": "X", "args": {"a": [1]}}'


def whole(text: bytes, *, goes_on: bool = False) -> list[bytes]:
    return [text[start:end] for start, end in find_whole_events(text, goes_on=goes_on).stretches]


@pytest.mark.parametrize(
    ("text", "mended"),
    [
        (b'{"name": "C:\\Users", "x": -inf}', b'{"name": "C:/Users", "x": null}'),
        (b'["a\x1bb", "\\n", "\\u00e9", "\\\\"]', b'["a b", "\\n", "\\u00e9", "\\\\"]'),
        (b"[NaN, Infinity]", b"[null, null]"),
        (b'["NaN, x"]', b'["NaN, x"]'),
        (b'["\xff"]', '["\ufffd"]'.encode()),
    ],
)
def test_what_is_no_json_is_replaced(text: bytes, mended: bytes) -> None:
    assert mend(text) == mended


@pytest.mark.parametrize(
    ("text", "mended"),
    [
        (b'"name": "f<"int">", "pid": 1', b'"name": "f<\'int\'>", "pid": 1'),
        (b'"name": "a", "cat": "b"', b'"name": "a", "cat": "b"'),
        (b'{"name": "C:\\"}', b'{"name": "C:/"}'),
    ],
)
def test_quotes_inside_names_become_apostrophes(text: bytes, mended: bytes) -> None:
    assert mend_names(text) == mended


def test_events_with_commas_between_them_are_one_stretch() -> None:
    assert whole(A + b", " + B) == [A + b", " + B]


def test_whole_events_are_found_around_damage() -> None:
    assert whole(b"xx" + A + b', {"ph": "X", "ts": }, ' + B + b', {"ph"') == [A, B]


def test_an_object_that_is_no_event_is_none() -> None:
    assert whole(b'{"a": 1}, ' + A) == [A]


@pytest.mark.parametrize(
    ("rest", "closed"), [(b"]}", True), (b'], "x": 1}', True), (b"]", True), (b"] x", False), (b"", False)]
)
def test_the_bracket_that_closes_the_events_is_told_by_what_follows(rest: bytes, closed: bool) -> None:
    assert (find_whole_events(A + rest).closed_at == len(A)) == closed


@pytest.mark.parametrize("cut", range(1, len(B) - 1))
def test_an_event_that_goes_on_is_left_open(cut: int) -> None:
    if b'":' in B[:cut]:
        found = find_whole_events(A + b"," + B[:cut], goes_on=True)
        assert (found.stretches, found.open_at) == ([(0, len(A))], len(A) + 1)


@pytest.mark.parametrize(
    "text",
    [
        b'{"ph":' * 50_000,
        b'{"ph": "X", "a": ' + b"[" * 200_000,
        b'{"ph": "X", "ts": ' + b"9" * 200_000 + b"}",
        (b'{"ph":1,"a":' + b"[1," * 900) * 60,
        b'{"a":' * 900 + b'"' + b"b" * 500_000,
    ],
    ids=["nested events", "nested lists", "digits", "many nested lists", "open string"],
)
def test_nothing_whole_is_found_in_nonsense_without_much_effort(text: bytes) -> None:
    assert whole(text) == []
