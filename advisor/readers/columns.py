"""Events to columns: words become codes as they come, so memory grows with the events kept and not with their text."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from advisor.readers.events import ABSENT, AnyEvent, Batch, Word
from advisor.readers.names import name_category, name_dtype
from advisor.readers.origins import CALLING, COLLECTIVE, LINKED, SHAPED, SIZED, WAITING, Origins, WordCodes
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

    def fill(self, column: Numbers) -> Numbers:
        """Writes the values into a column that holds the default."""
        if self._rows:
            column[np.concatenate(self._rows)] = np.concatenate(self._values)
        return column


class EventColumns:
    """The events of one file, taken over batch by batch, in the order of the file."""

    def __init__(self) -> None:
        self.num_rows = 0
        self.origins = Origins()
        self.processes: list[str] = []
        """The ids of those that train, once the table is built."""
        self._dense: dict[str, list[Numbers]] = {name: [] for name in ("origin", "start_ns", "end_ns")}
        self._sparse = {name: SparseColumn() for name in (*_LINKS, *_AMOUNTS, *_WAITS, *_WORDS, *_SHAPES)}
        self._codes: dict[str, WordCodes[str | bytes]] = {name: WordCodes() for name in (*_WORDS, *_SHAPES)}
        for name, codes in self._codes.items():
            codes[b"" if name in _SHAPES else ""] = 0

    def add(self, batch: Batch) -> None:
        """Takes over what is used of the events."""
        origins = self.origins
        codes = [origins[e.cat or _name_category(e), e.name, e.pid, e.tid] for e in batch.events]
        origin = np.array(codes, dtype=np.int32)
        self._dense["origin"].append(origin)
        self._dense["start_ns"].append(batch.start_ns)
        self._dense["end_ns"].append(batch.end_ns)
        traits = origins.traits[origin]
        is_long = batch.end_ns - batch.start_ns >= SHORTEST_SHAPED_NS
        present = np.bitwise_or.reduce(traits) if len(traits) else 0
        if present & (CALLING | LINKED | WAITING):
            self._add_numbers(batch.events, np.flatnonzero(traits & CALLING), ("correlation",))
            self._add_numbers(batch.events, np.flatnonzero(traits & LINKED), _LINKS)
            self._add_numbers(batch.events, np.flatnonzero(traits & WAITING), _WAITS)
        if present & COLLECTIVE:
            self._add_collectives(batch.events, np.flatnonzero(traits & COLLECTIVE))
        if present & (SIZED | SHAPED):
            self._add_shapes(batch.events, np.flatnonzero((traits & SIZED) | np.where(is_long, traits & SHAPED, 0)))
        self.num_rows += len(batch.events)

    def _add_numbers(self, events: Sequence[AnyEvent], rows: Numbers, names: Sequence[str]) -> None:
        arguments = [events[row].args for row in rows.tolist()]
        at = rows + self.num_rows
        for name in names:
            self._sparse[name].add(at, read_integers(list(map(attrgetter(name), arguments))))

    def _add_collectives(self, events: Sequence[AnyEvent], rows: Numbers) -> None:
        rows = np.array([row for row in rows.tolist() if events[row].args.collective], dtype=np.int64)
        self._add_numbers(events, rows, _AMOUNTS)
        arguments = [events[row].args for row in rows.tolist()]
        for name in _WORDS:
            self._add_words(name, rows, [str(getattr(one, name)) for one in arguments])

    def _add_shapes(self, events: Sequence[AnyEvent], rows: Numbers) -> None:
        rows = np.array([row for row in rows.tolist() if events[row].args.input_dims is not ABSENT], dtype=np.int64)
        arguments = [events[row].args for row in rows.tolist()]
        self._add_words("input_dims", rows, [bytes(one.input_dims) for one in arguments])
        self._add_words("input_type", rows, [bytes(one.input_type) for one in arguments])

    def _add_words(self, name: str, rows: Numbers, words: Sequence[str | bytes]) -> None:
        codes = self._codes[name]
        self._sparse[name].add(rows + self.num_rows, np.array([codes[word] for word in words], dtype=np.int32))

    # What becomes of it.

    def build(self) -> pd.DataFrame:
        """The table of `Trace.events`, but in the order of the file; nothing can be added afterwards."""
        origin = self._join("origin")
        self.processes = self.origins.list_processes(np.bincount(origin, minlength=len(self.origins)).tolist())
        numbers = {name: self._spread(name, -1, EVENT_COLUMNS[name]) for name in (*_LINKS, *_AMOUNTS, *_WAITS)}
        codes = {name: self._spread(name, 0, "int32") for name in self._codes}
        words = {name: list(map(_decode_word, self._codes[name])) for name in self._codes}
        words["dtype"] = [name_dtype(word) for word in words["dtype"]]
        unsized = np.flatnonzero((self.origins.traits[origin] & SIZED > 0) & (numbers["num_elements"] < 0))
        numbers["num_elements"][unsized] = _measure_shapes(unsized, codes, words)
        columns = {
            "name": _categorize(origin, self.origins.names),
            "category": _categorize(origin, self.origins.categories),
            "thread": _number(self.origins.threads)[origin],
            "start_ns": self._join("start_ns"),
            "end_ns": self._join("end_ns"),
            **numbers,
            **{name: _categorize(codes.pop(name), words[name]) for name in (*_WORDS, "input_dims")},
        }
        return pd.DataFrame({name: columns.pop(name) for name in EVENT_COLUMNS}, copy=False)

    def _join(self, name: str) -> Numbers:
        return np.concatenate(self._dense.pop(name))

    def _spread(self, name: str, default: int, dtype: str) -> Numbers:
        return self._sparse.pop(name).fill(np.full(self.num_rows, default, dtype=dtype))


def sort_events(table: pd.DataFrame) -> pd.DataFrame:
    """The events by start, the longest first where equal."""
    start_ns, end_ns = table["start_ns"].to_numpy(), table["end_ns"].to_numpy()
    order = np.argsort(start_ns, kind="stable")  # quick, as a file consists of sorted stretches
    equal = np.diff(start_ns[order]) == 0
    is_tied = np.append(equal, False) | np.append(False, equal)
    tied = order[is_tied]
    order[is_tied] = tied[np.lexsort((-end_ns[tied], start_ns[tied]))]
    return table.take(order).reset_index(drop=True)


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


def _name_category(event: AnyEvent) -> str:
    return name_category(None, event.name, has_stream=event.args.stream != -1)


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
    pairs, place = np.unique(np.column_stack([codes[name][rows] for name in _SHAPES]), axis=0, return_inverse=True)
    dims, types = ([words[name][code] for code in pairs[:, side]] for side, name in enumerate(_SHAPES))
    codes["dtype"][rows] = len(words["dtype"]) + place
    words["dtype"] += map(find_dtype, types)
    return np.array(list(map(count_elements, dims, types)), dtype=np.int64)[place]
