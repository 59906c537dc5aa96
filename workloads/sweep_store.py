"""`sweep.sqlite`: the arms with their frozen predictions, and every measured step of every rank as it came.

Everything is written in transactions of one visit, so an interrupted sweep holds whole visits and can be resumed.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Literal

import msgspec

from advisor.errors import InputError
from workloads.requests import Arm

State = Literal["waiting", "warming", "ready", "measuring", "failed"]

TABLES = """
CREATE TABLE sweep (predictions_sha256 TEXT, steps_per_visit INTEGER, created TEXT);
CREATE TABLE arms (position INTEGER PRIMARY KEY, arm TEXT, state TEXT, message TEXT);
CREATE TABLE steps (
    position INTEGER REFERENCES arms, round INTEGER, step INTEGER, rank INTEGER, duration_ns INTEGER, counted INTEGER,
    PRIMARY KEY (position, round, step, rank)
);
"""


def hash_predictions(arms: Sequence[Arm]) -> str:
    """SHA-256 of the arms' names, settings and predictions, as JSON with sorted keys."""
    return hashlib.sha256(msgspec.json.encode(arms, order="sorted")).hexdigest()


class SweepStore:
    """One connection to a sweep's file; a context manager that closes it.

    An arm is known by its position among the arms.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection = sqlite3.connect(path)

    def __enter__(self) -> SweepStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    @classmethod
    def freeze(cls, path: Path, arms: Sequence[Arm], steps_per_visit: int) -> SweepStore:
        """Writes arms and predictions before anything is measured, or opens the same sweep again.

        Raises:
            InputError: The file cannot be written, is no sweep, or is one of other arms.
        """
        digest = hash_predictions(arms)
        try:
            store = cls(path)
        except sqlite3.Error as error:
            raise _unusable(path, error) from error
        try:
            if not store._connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'sweep'").fetchone():
                store._create(digest, arms, steps_per_visit)
            if store.predictions_sha256() != digest or store.steps_per_visit() != steps_per_visit:
                raise InputError(
                    f"{path} holds a sweep of other settings or predictions: remove it or name a new file."
                )
        except (sqlite3.Error, InputError) as error:
            store._connection.close()
            raise (error if isinstance(error, InputError) else _unusable(path, error)) from error
        return store

    def _create(self, digest: str, arms: Sequence[Arm], steps_per_visit: int) -> None:
        self._connection.executescript(TABLES)
        created = datetime.now().astimezone().isoformat(timespec="seconds")
        rows = [(position, msgspec.json.encode(arm).decode()) for position, arm in enumerate(arms)]
        with self._connection:
            self._connection.execute("INSERT INTO sweep VALUES (?, ?, ?)", (digest, steps_per_visit, created))
            self._connection.executemany("INSERT INTO arms VALUES (?, ?, 'waiting', '')", rows)

    def predictions_sha256(self) -> str:
        """The hash taken before the first measurement."""
        return str(self._connection.execute("SELECT predictions_sha256 FROM sweep").fetchone()[0])

    def steps_per_visit(self) -> int:
        """Steps a visit, the discarded first one included."""
        return int(self._connection.execute("SELECT steps_per_visit FROM sweep").fetchone()[0])

    def arms(self) -> list[Arm]:
        """All arms in their order."""
        rows = self._connection.execute("SELECT arm FROM arms ORDER BY position")
        return [msgspec.json.decode(row[0], type=Arm) for row in rows]

    def set_state(self, position: int, state: State, message: str = "") -> None:
        """Says what an arm is doing; whichever is warming or measuring when a process dies is the one to blame."""
        with self._connection:
            self._connection.execute(
                "UPDATE arms SET state = ?, message = ? WHERE position = ?", (state, message, position)
            )

    def reset_states(self) -> None:
        """Forgets what arms were doing when a sweep was interrupted; those that failed stay out."""
        with self._connection:
            self._connection.execute("UPDATE arms SET state = 'waiting' WHERE state != 'failed'")

    def positions(self, *states: State) -> list[int]:
        """The arms in any of these states."""
        marks = ", ".join("?" * len(states))
        rows = self._connection.execute(f"SELECT position FROM arms WHERE state IN ({marks}) ORDER BY position", states)
        return [row[0] for row in rows]

    def message(self, position: int) -> str:
        """Why an arm failed."""
        query = "SELECT message FROM arms WHERE position = ?"
        return str(self._connection.execute(query, (position,)).fetchone()[0])

    def next_round(self) -> int:
        """The first round without any measurement."""
        return int(self._connection.execute("SELECT coalesce(max(round) + 1, 0) FROM steps").fetchone()[0])

    def add_visit(self, position: int, round_index: int, durations_ns: Iterable[Sequence[int]]) -> None:
        """Stores one visit, a sequence of steps a rank; the first step of a visit does not count."""
        rows = [
            (position, round_index, step, rank, duration, step > 0)
            for rank, steps in enumerate(durations_ns)
            for step, duration in enumerate(steps)
        ]
        with self._connection:
            self._connection.executemany("INSERT INTO steps VALUES (?, ?, ?, ?, ?, ?)", rows)

    def blocks(self, position: int) -> dict[int, list[int]]:
        """The counted steps of an arm by round, each the duration on its slowest rank, in ns."""
        rows = self._connection.execute(
            "SELECT round, max(duration_ns) FROM steps WHERE position = ? AND counted GROUP BY round, step", (position,)
        )
        blocks: dict[int, list[int]] = {}
        for round_index, duration_ns in rows:
            blocks.setdefault(round_index, []).append(duration_ns)
        return blocks


def _unusable(path: Path, error: sqlite3.Error) -> InputError:
    return InputError(f"{path} cannot be used for a sweep ({error}): remove it or name a new file.")
