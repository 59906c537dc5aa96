"""What the first kilobytes of a file tell before it is read: whether it is a trace, whose, and from when.

Kineto writes `distributedInfo` before the events, so this is enough to tell runs and ranks apart in any folder.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

from advisor.readers.loose import read_count, read_rank
from advisor.readers.text import read_text

HEAD_BYTES = 2**17

_MARKS = re.compile(r'"(?:traceEvents|distributedInfo|deviceProperties|ph)"\s*:')
_DISTRIBUTED = re.compile(r'"distributedInfo"\s*:\s*(?=\{)')
_COUNT = re.compile(r'"(rank|world_size)"\s*:\s*(\d+)')
_PROCESS = re.compile(
    r'"cat"\s*:\s*"(?:cpu_op|operator|user_annotation|cuda_runtime)"[^{}]*?"pid"\s*:\s*"?(-?\d+)', re.IGNORECASE
)
_TIME = re.compile(r'"ts"\s*:\s*"?([1-9]\d*)')
_BASE = re.compile(r'"baseTimeNanoseconds"\s*:\s*(\d+)')


@dataclass(frozen=True)
class Head:
    """What a file says about itself at its start."""

    is_trace: bool
    rank: int | None
    world_size: int | None
    process: str | None
    """The process id of the first host event."""
    first_ns: int | None
    """The time of the first event, near the start of the recording; on the file's own clock."""
    digest: str
    """Two files that start alike are the same recording."""


def read_head(start: bytes) -> Head:
    """Reads the first `HEAD_BYTES` of the text, or all of it where it is shorter."""
    text = b"".join(read_text(start)).decode(errors="replace")
    info = _find_distributed(text)
    searched = [pattern.search(text) for pattern in (_PROCESS, _TIME, _BASE)]
    process, time, base = (found[1] if found else None for found in searched)
    first_us = read_count(time)
    return Head(
        is_trace=bool(_MARKS.search(text)),
        rank=read_rank(info.get("rank")),
        world_size=read_rank(info.get("world_size")),
        process=process,
        first_ns=None if first_us is None else first_us * 1000 + (read_count(base) or 0),
        digest=hashlib.sha256(start).hexdigest(),
    )


def _find_distributed(text: str) -> dict[str, Any]:
    """`distributedInfo`; where it goes on beyond the text, what comes before its long list of groups."""
    match = _DISTRIBUTED.search(text)
    if match is None:
        return {}
    try:
        found = json.JSONDecoder().raw_decode(text, match.end())[0]
    except (ValueError, RecursionError):
        return dict(_COUNT.findall(text[match.end() :].partition("[")[0]))
    return found if isinstance(found, dict) else {}
