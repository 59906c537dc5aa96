"""What a piece of training sends, read off the profiler, so that torch's wrapper and ours are counted alike."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod

from torch.profiler import ProfilerActivity, profile


@dataclass
class Sent:
    """Element counts of the collectives, in the order in which they began, and the names of all events."""

    all_reduces: list[int] = field(default_factory=list)
    broadcasts: list[int] = field(default_factory=list)
    events: list[str] = field(default_factory=list)


@contextmanager
def recorded() -> Iterator[Sent]:
    """Fills the yielded lists when the block ends."""
    sent = Sent()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, acc_events=True) as profiler:
        yield sent
    for event in sorted(profiler.events() or (), key=lambda event: event.time_range.start):
        sent.events.append(event.name)
        if event.name == "gloo:all_reduce":
            sent.all_reduces.append(prod(event.input_shapes[0]))
        elif event.name == "gloo:broadcast":
            sent.broadcasts.append(prod(event.input_shapes[0]))
