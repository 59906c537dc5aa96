"""The rank, and what else a file name says where the file itself does not: patterns as data, first match wins."""

from __future__ import annotations

import re

from advisor.readers.loose import read_rank

_SUFFIXES = re.compile(r"(?:\.\d{13,19})?(?:\.pt)?(?:[._-]trace)?\.json(?:\.\w+)?$", re.IGNORECASE)
_PROCESS = re.compile(r"(?<!step)(?<!iter)(?<!iteration)(?<!epoch)_(\d+)\.\d{13,19}\.pt\.trace\.json", re.IGNORECASE)
_CLOCK = re.compile(r"\.(\d{13,19})\.pt\.trace\.json", re.IGNORECASE)
"""torch's tensorboard_trace_handler writes `<host>_<process>.<time>.pt.trace.json`, in ms or ns, for either of them."""

_NO_RANKS = re.compile(
    r"(?:step|iter|iteration|epoch|cycle|window)s?[-_=]?\d+"  # when, not who
    r"|(?:world|ws|of)[-_]?(?:size)?[-_=]?\d+"  # of how many
    r"|(?:node|host)(?:[-_]?rank)?[-_=]?\d+"  # which machine
    r"|\d{6,}",  # dates, clocks
    re.IGNORECASE,
)
_RANK = re.compile(r"(?<!local)(?<!local[-_])rank[-_.=]?(\d+)", re.IGNORECASE)
_LOCAL_RANK = re.compile(r"local[-_]?rank[-_.=]?(\d+)", re.IGNORECASE)
_WORKER = re.compile(r"(?<![a-z])(?:worker|trace|gpu|device|proc|process|r)[-_.=]?(\d+)(?!\d)", re.IGNORECASE)
_LAST_NUMBER = re.compile(r"(?:^|[-_.])(\d+)$")
_NODE = re.compile(r"(?<![a-z])(?:node|host)[-_]?\d", re.IGNORECASE)
_FOLDER = re.compile(r"(?:^|/)rank[-_.=]?(\d+)(?:of\d+)?(?=/|$)", re.IGNORECASE)
_WORD = re.compile(r"[^\W_]+")


def guess_rank(name: str, folder: str = "") -> int | None:
    """The rank that a file's name suggests, else the innermost folder's, else nothing.

    A process id is no rank, nor is a step, a date, a rank on one of several nodes, or the 50 of `resnet50.json`.

    Example: `baseline-220ff-rank6-chrome-trace.json.gz` -> 6, `host_21147.1698955063520869240.pt.trace.json` -> None.
    """
    stem = _NO_RANKS.sub("", _SUFFIXES.sub("", name))
    if find_process(name):  # then the worker may be a machine's name
        patterns = [_RANK]
    elif _NODE.search(name):
        patterns = [_RANK, _WORKER, _LAST_NUMBER] if "local" not in name.lower() else [_RANK]
    else:
        patterns = [_RANK, _LOCAL_RANK, _WORKER, _LAST_NUMBER]
    found = [match[1] for pattern in patterns if (match := pattern.search(stem))] or _FOLDER.findall(folder)[-1:]
    return read_rank(found[0]) if found else None


def find_process(name: str) -> str | None:
    """The process id in a name that torch's tensorboard_trace_handler made."""
    match = _PROCESS.search(name)
    return match[1] if match else None


def find_time_ns(name: str) -> int | None:
    """When the file was written, in nanoseconds since 1970, by a name that torch's tensorboard_trace_handler made."""
    match = _CLOCK.search(name)
    return int(match[1].ljust(19, "0")) if match else None


def strip_numbers(name: str) -> str:
    """A file name without what differs from rank to rank of one run: every word that holds a digit, but its letters.

    Example: `fast-220ff-rank6.json` -> `fast-#-rank#.json`.
    """
    return _WORD.sub(lambda word: _strip_word(word[0]), name)


def _strip_word(word: str) -> str:
    letters = word.rstrip("0123456789")
    return "#" if any(map(str.isdigit, letters)) else f"{letters}#" if letters != word else word
