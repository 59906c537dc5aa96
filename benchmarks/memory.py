"""The memory of a command and of all processes that it starts, watched from outside."""

from __future__ import annotations

import time
from contextlib import suppress

import psutil  # type: ignore[import-untyped]

PAUSE_S = 0.1


def watch_memory(pid: int) -> int:
    """The most bytes that a process and all below it held at one moment, seen ten times a second until it ends.

    A page that several of them share, as forked ones do, counts once: each adds its proportional set size (Linux).

    Source: `Pss` in https://docs.kernel.org/filesystems/proc.html
    """
    peak = 0
    with suppress(psutil.NoSuchProcess):  # it ended meanwhile
        process = psutil.Process(pid)
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            peak = max(peak, sum(map(_count_bytes, [process, *process.children(recursive=True)])))
            time.sleep(PAUSE_S)
    return peak


def _count_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:  # it ended meanwhile
        return 0
