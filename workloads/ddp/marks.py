"""Profiler marks of the wrapper, free while no profiler runs."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from torch.autograd import profiler

_NOTHING = nullcontext()


def mark(name: str, *fields: int) -> AbstractContextManager[object]:
    """A profiler range `name#field#field`, or nothing at all while nobody records."""
    if not profiler._is_profiler_enabled:
        return _NOTHING
    return profiler.record_function("#".join((name, *map(str, fields))))


def mark_moment(name: str, *fields: int) -> None:
    """A range without length."""
    with mark(name, *fields):
        pass
