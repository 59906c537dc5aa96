"""Where events come from: category, name, process and thread, and what is looked for in an event for its origin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from advisor.readers.names import (
    ACCUMULATE_GRAD_OP,
    ANNOTATION,
    AUTOGRAD_NODE,
    COLLECTIVE_OP,
    COLLECTIVE_RECORD,
    COPY_BACK,
    DDP_FORWARD,
    GLOO_SPAN,
    KERNEL,
    LOSS_OPERATOR,
    MEMORY,
    NCCL_SPAN,
    OPERATOR,
    PROFILER_STEP,
    RUNTIME,
    SYNCHRONIZATION,
    name_category,
)

Word = TypeVar("Word")

SMALL_SHARE = 0.1

Origin: TypeAlias = tuple[str | None, str, int | str | None, int | str | None]
"""Category as it is spelled, name, pid and tid."""

CALLING, LINKED, COLLECTIVE, SIZED, SHAPED, WAITING, TRAINING, UNNAMED = (1 << bit for bit in range(8))
"""Traits: calls the device; has a link to such a call, or to a record of a collective; is the span of a collective; its
shapes tell how much it moves; its shapes tell it from others of its name; waits; is of the process that trains; has no
category."""


class WordCodes(dict[Word, int]):
    """Numbers words in the order of their first appearance."""

    def __missing__(self, word: Word) -> int:
        self[word] = code = len(self)
        return code


class Origins(dict[Origin, int]):
    """Numbers origins in the order of their first appearance; lists what they stand for by number."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.categories: list[str] = []
        self.threads: list[str] = []
        """Process and thread in one word."""
        self._traits = bytearray()

    def __missing__(self, origin: Origin) -> int:
        self[origin] = code = len(self)
        spelling, name, pid, tid = origin
        category = name_category(spelling, name)
        self.names.append(name)
        self.categories.append(category)
        self.threads.append(f"{pid}/{tid}")
        self._traits.append(find_traits(category, name) | (0 if spelling else UNNAMED))
        return code

    @property
    def traits(self) -> npt.NDArray[np.uint8]:
        """By number."""
        return np.frombuffer(bytes(self._traits), dtype=np.uint8)

    def list_processes(self, counts: Sequence[int]) -> list[str]:
        """The ids of the processes that train, from the number of events of each origin.

        A process with less than `SMALL_SHARE` of the events of the busiest is none: its id was damaged.
        """
        num_events: Counter[str] = Counter()
        for (_, _, pid, _), code in self.items():
            if self._traits[code] & TRAINING:
                num_events[str(pid)] += counts[code]
        most = max(num_events.values(), default=0)
        return [pid for pid, number in num_events.items() if number >= SMALL_SHARE * most]


def find_traits(category: str, name: str) -> int:
    """The traits of events of a category (as it is called today) and a name."""
    is_record = name == COLLECTIVE_RECORD
    is_span = bool(GLOO_SPAN.match(name) or NCCL_SPAN.match(name) or COLLECTIVE_OP.match(name))
    is_host = category in OPERATOR | ANNOTATION
    is_step = name.startswith(AUTOGRAD_NODE) or name in DDP_FORWARD or bool(PROFILER_STEP.match(name))
    traits = {
        CALLING: category in RUNTIME,
        LINKED: is_record or category in KERNEL | MEMORY | SYNCHRONIZATION,
        COLLECTIVE: is_span,
        SIZED: is_span or name in (ACCUMULATE_GRAD_OP, COPY_BACK) or bool(LOSS_OPERATOR.match(name)),
        SHAPED: category in OPERATOR,
        WAITING: category in SYNCHRONIZATION,
        TRAINING: is_host and is_step,
    }
    return sum(trait for trait, applies in traits.items() if applies)
