"""Events to columns: words become codes as they come, so memory grows with the events kept and not with their text."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from advisor.readers.arguments import ABSENT, Call, Collective, Kind, Link, Shapes, Wait, decode_arguments
from advisor.readers.events import AnyEvent, Batch
from advisor.readers.loose import Word
from advisor.readers.names import name_category, name_dtype
from advisor.readers.origins import CALLING, COLLECTIVE, LINKED, SHAPED, SIZED, UNNAMED, WAITING, Origins, WordCodes
from advisor.readers.shapes import count_elements, find_dtype
from advisor.tables import EVENT_COLUMNS, SHORTEST_SHAPED_NS

Numbers: TypeAlias = npt.NDArray[Any]

_LINKS = ("stream", "correlation", "external_id")
_AMOUNTS = ("num_elements", "num_output_elements", "group_size", "sequence")
_WAITS = ("wait_on_stream", "wait_on_cuda_event_record_corr_id")
_WORDS = ("collective", "dtype", "process_group")
_SHAPES = ("input_dims", "input_type")


class SparseColumn:
    """A column in which few rows have a value."""

    def __init__(self) -> None:
        self._rows: list[Numbers] = []
        self._values: list[Numbers] = []

    def add(self, rows: Numbers, values: Numbers) -> None:
        """Sets some rows."""
        self._rows.append(rows)
        self._values.append(values)

    def fill(self, column: Numbers, places: Numbers) -> Numbers:
        """Writes the values into a column that holds the default, each to the place of its row."""
        if self._rows:
            column[places[np.concatenate(self._rows)]] = np.concatenate(self._values)
        return column


class EventColumns:
    """The events of one file, taken over batch by batch, in the order of the file."""

    def __init__(self) -> None:
        self.num_rows = 0
        self.origins = Origins()
        self.processes: list[str] = []
        """The ids of those that train, once the table is built."""
        self.places: Numbers = np.empty(0, dtype=np.int64)
        """The row of each event, in the order of the file, likewise."""
        self._dense: dict[str, list[Numbers]] = {name: [] for name in ("origin", "start_ns", "end_ns")}
        self._sparse = {name: SparseColumn() for name in (*_LINKS, *_AMOUNTS, *_WAITS, *_WORDS, *_SHAPES)}
        self._codes: dict[str, WordCodes[str | bytes]] = {name: WordCodes() for name in (*_WORDS, *_SHAPES)}
        for name, codes in self._codes.items():
            codes[b"" if name in _SHAPES else ""] = 0

    def add(self, batch: Batch) -> None:
        """Takes over what is used of the events."""
        events = batch.events
        origin = self._number_origins(events)
        self._dense["origin"].append(origin)
        self._dense["start_ns"].append(batch.start_ns)
        self._dense["end_ns"].append(batch.end_ns)
        traits = self.origins.traits[origin]
        present = np.bitwise_or.reduce(traits, initial=0)
        if present & CALLING:
            self._add_numbers(events, np.flatnonzero(traits & CALLING), Call, ("correlation",))
        if present & WAITING:
            self._add_numbers(events, np.flatnonzero(traits & WAITING), Wait, _WAITS)
        spans = np.flatnonzero(traits & COLLECTIVE)
        if present & LINKED:
            rows = np.flatnonzero(traits & LINKED)
            links = self._add_numbers(events, rows, Link, _LINKS)
            spans = np.append(spans, rows[np.array([link.collective != "" for link in links])])
        if len(spans):
            self._add_collectives(events, spans)
        if present & (SIZED | SHAPED):
            is_long = batch.end_ns - batch.start_ns >= SHORTEST_SHAPED_NS
            self._add_shapes(events, np.flatnonzero((traits & SIZED) | np.where(is_long, traits & SHAPED, 0)))
        self.num_rows += len(events)

    def _number_origins(self, events: Sequence[AnyEvent]) -> Numbers:
        numbers = self._look_up(events)
        unnamed = np.flatnonzero(self.origins.traits[numbers] & UNNAMED)
        if len(unnamed):
            chosen = [events[row] for row in unnamed.tolist()]
            for event, link in zip(chosen, decode_arguments(Link, [event.args for event in chosen]), strict=True):
                event.cat = name_category(None, event.name, has_stream=link.stream != -1)
            numbers[unnamed] = self._look_up(chosen)
        return numbers

    def _look_up(self, events: Sequence[AnyEvent]) -> Numbers:
        origins = self.origins
        numbers = [origins[event.cat, event.name, event.pid, event.tid] for event in events]
        return np.fromiter(numbers, np.int32, len(events))

    def _add_numbers(
        self, events: Sequence[AnyEvent], rows: Numbers, kind: type[Kind], names: Sequence[str]
    ) -> list[Kind]:
        arguments = decode_arguments(kind, [events[row].args for row in rows.tolist()])
        for name in names:
            self._sparse[name].add(rows + self.num_rows, read_integers(list(map(attrgetter(name), arguments))))
        return arguments

    def _add_collectives(self, events: Sequence[AnyEvent], rows: Numbers) -> None:
        arguments = decode_arguments(Collective, [events[row].args for row in rows.tolist()])
        rows = rows[np.array([one.collective != "" for one in arguments])]
        arguments = [one for one in arguments if one.collective]
        for name in _AMOUNTS:
            self._sparse[name].add(rows + self.num_rows, read_integers([getattr(one, name) for one in arguments]))
        for name in _WORDS:
            self._add_words(name, rows, [str(getattr(one, name)) for one in arguments])

    def _add_shapes(self, events: Sequence[AnyEvent], rows: Numbers) -> None:
        texts = [events[row].args for row in rows.tolist()]
        if b'"Input Dims"' not in b"".join(texts):
            return  # as in most recordings
        arguments = decode_arguments(Shapes, texts)
        rows = rows[np.array([one.input_dims is not ABSENT for one in arguments], dtype=bool)]
        arguments = [one for one in arguments if one.input_dims is not ABSENT]
        self._add_words("input_dims", rows, [bytes(one.input_dims) for one in arguments])
        self._add_words("input_type", rows, [bytes(one.input_type) for one in arguments])

    def _add_words(self, name: str, rows: Numbers, words: Sequence[str | bytes]) -> None:
        codes = self._codes[name]
        self._sparse[name].add(rows + self.num_rows, np.array([codes[word] for word in words], dtype=np.int32))

    # What becomes of it.

    def build(self) -> pd.DataFrame:
        """The table of `Trace.events`; nothing can be added afterwards."""
        origin, start_ns, end_ns = (self._join(name) for name in ("origin", "start_ns", "end_ns"))
        self.processes = self.origins.list_processes(np.bincount(origin, minlength=len(self.origins)).tolist())
        order = order_events(start_ns, end_ns)
        self.places = np.empty_like(order)
        self.places[order] = np.arange(self.num_rows)
        origin = origin[order]
        numbers = {name: self._spread(name, -1, EVENT_COLUMNS[name]) for name in (*_LINKS, *_AMOUNTS, *_WAITS)}
        codes = {name: self._spread(name, 0, "int32") for name in self._codes}
        words = {name: list(map(_decode_word, self._codes[name])) for name in self._codes}
        words["dtype"] = [name_dtype(word) for word in words["dtype"]]
        unsized = np.flatnonzero((self.origins.traits & SIZED > 0)[origin] & (numbers["num_elements"] < 0))
        numbers["num_elements"][unsized] = _measure_shapes(unsized, codes, words)
        columns = {
            "name": _categorize(origin, self.origins.names),
            "category": _categorize(origin, self.origins.categories),
            "thread": _number(self.origins.threads)[origin],
            "start_ns": start_ns[order],
            "end_ns": end_ns[order],
            **numbers,
            **{name: _categorize(codes.pop(name), words[name]) for name in (*_WORDS, "input_dims")},
        }
        return pd.DataFrame({name: columns.pop(name) for name in EVENT_COLUMNS}, copy=False)

    def _join(self, name: str) -> Numbers:
        return np.concatenate(self._dense.pop(name))

    def _spread(self, name: str, default: int, dtype: str) -> Numbers:
        return self._sparse.pop(name).fill(np.full(self.num_rows, default, dtype=dtype), self.places)


def order_events(start_ns: Numbers, end_ns: Numbers) -> Numbers:
    """The rows by start, the longest first where equal."""
    order = np.argsort(start_ns, kind="stable")  # quick, as a file consists of sorted stretches
    equal = np.diff(start_ns[order]) == 0
    is_tied = np.append(equal, False) | np.append(False, equal)
    tied = order[is_tied]
    order[is_tied] = tied[np.lexsort((-end_ns[tied], start_ns[tied]))]
    return order


def read_integers(words: Sequence[Word]) -> Numbers:
    """Words as 64-bit integers; -1 for what is none."""
    try:
        return np.array(words, dtype=np.int64)
    except (TypeError, ValueError, OverflowError):
        return np.array([_read_integer(word) for word in words], dtype=np.int64)


def _read_integer(word: Word) -> int:
    try:
        number = int(word) if word is not None else -1
    except ValueError:
        return -1
    return number if -(2**63) <= number < 2**63 else -1


def _decode_word(word: str | bytes) -> str:
    return word.decode(errors="replace") if isinstance(word, bytes) else word


def _number(words: Sequence[str]) -> Numbers:
    """The place of each word among the distinct ones."""
    places: WordCodes[str] = WordCodes()
    return np.array([places[word] for word in words], dtype=np.int32)


def _categorize(codes: Numbers, words: Sequence[str]) -> pd.Categorical:
    """A categorical of words that may be listed more than once."""
    distinct = pd.Index(list(dict.fromkeys(words)), dtype=object)
    return pd.Categorical.from_codes(cast("Sequence[int]", _number(words)[codes]), categories=distinct)


def _measure_shapes(rows: Numbers, codes: dict[str, Numbers], words: dict[str, list[str]]) -> Numbers:
    """The elements of rows without amounts of their own, gradients among them; writes their dtypes."""
    num_types = len(words["input_type"])
    both = codes["input_dims"][rows].astype(np.int64) * num_types + codes["input_type"][rows]
    pairs, place = np.unique(both, return_inverse=True)
    dims = [words["input_dims"][pair // num_types] for pair in pairs.tolist()]
    types = [words["input_type"][pair % num_types] for pair in pairs.tolist()]
    codes["dtype"][rows] = len(words["dtype"]) + place
    words["dtype"] += map(find_dtype, types)
    return np.array(list(map(count_elements, dims, types)), dtype=np.int64)[place]
