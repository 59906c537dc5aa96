"""What nccl-tests printed (`all_reduce_perf` and its siblings) or wrote as JSON (`-J FILE`), as a ladder.

Times are the averages in its columns `time`, in µs, out of place and in place. The size it prints is that of the whole
array, so a rank's input of an all-gather is a share of it.

**Source**: nccl-tests, src/util.cu (columns and JSON) and doc/PERFORMANCE.md (sizes).
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from advisor.errors import InputError
from advisor.readers.locations import Location, open_stream
from advisor.readers.loose import read_count, read_rank
from advisor.readers.names import name_collective_kind, name_dtype
from advisor.schema import DeviceInfo, Ladder, LadderPoint

PROGRAM = re.compile(r"\b(\w+)_perf\b")
RANK = re.compile(r"^#\s+Rank\s+(?P<rank>\d+)\s.*\son\s+(?P<host>\S+)\s+device\s+\d+\s+\[[^\]]*\]\s+(?P<device>.*\S)")
HEADER = re.compile(r"^#\s+size\s+count\s+type\s+redop\b")
TIMES = ("time", "cputime")
LARGEST_BYTES = 2**50
HOW_TO = "give what all_reduce_perf, reduce_scatter_perf or all_gather_perf printed, whole, or wrote with -J FILE"


@dataclass(frozen=True)
class Row:
    """One line of a table: its program, bytes of the whole array, dtype as spelled, and times in µs."""

    program: str
    size: int
    dtype: str
    times_us: tuple[float, ...]


class _Times(msgspec.Struct):
    time: float | None = None
    cpu_time: float | None = None


class _Result(msgspec.Struct):
    size: int
    type: str
    out_of_place: _Times | None = None
    in_place: _Times | None = None


class _Device(msgspec.Struct):
    rank: int
    hostname: str = ""
    device_info: str = ""


class _Config(msgspec.Struct):
    nthreads: int = 1
    ngpus: int = 1
    devices: tuple[_Device, ...] = ()


class _Document(msgspec.Struct):
    """Only what is used of the JSON; with several GPUs in a process only the first one's device is listed."""

    results: tuple[_Result, ...]
    args: tuple[str, ...] = ()
    config: _Config = msgspec.field(default_factory=_Config)


def read_nccl_tests(location: Location) -> Ladder:
    """Reads one output of nccl-tests, text or JSON.

    Raises:
        InputError: It cannot be read, is none, or does not say on how many ranks or which collective it ran.
    """
    with open_stream(location) as stream:
        data = stream.read()
    rows, devices, num_ranks = (_read_json if data.lstrip()[:1] == b"{" else _read_text)(data, location.name)
    if rows and num_ranks < 2:
        raise InputError(f"{location.name} does not say that it ran on several ranks (lines `# Rank …`): {HOW_TO}.")
    points = tuple(_build_points(rows, num_ranks, location.name))
    if not points:
        raise InputError(f"{location.name} holds no measurement of nccl-tests: {HOW_TO}.")
    return Ladder(
        source="nccl_tests",
        world_size=num_ranks,
        backend="nccl",
        points=points,
        devices=devices,
    )


def _build_points(rows: Iterable[Row], num_ranks: int, name: str) -> Iterator[LadderPoint]:
    times_of: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    for row in rows:
        program = row.program or _find_program(name)
        kind = name_collective_kind(program)
        if kind is None:
            raise InputError(f"{name} does not say which collective it measured: name it all_reduce_perf.txt or so.")
        num_bytes = row.size // num_ranks if kind == "all_gather" else row.size
        times_of[kind, name_dtype(row.dtype), num_bytes] += [time for time in row.times_us if 0 < time < math.inf]
    for (name_of_kind, dtype, num_bytes), times in times_of.items():
        if 0 < num_bytes <= LARGEST_BYTES and times:
            rounds = tuple((round(1e3 * time),) for time in times)
            yield LadderPoint(kind=name_of_kind, dtype=dtype, num_bytes=num_bytes, rounds_ns=rounds)


def _find_program(text: str) -> str:
    found = PROGRAM.search(text)
    return found[1] if found else ""


def _read_text(data: bytes, name: str) -> tuple[list[Row], tuple[DeviceInfo, ...], int]:
    rows: list[Row] = []
    devices: dict[int, DeviceInfo] = {}
    program, columns = "", []
    for line in data.decode(errors="replace").splitlines():
        if (found := RANK.match(line)) and (rank := read_rank(found["rank"])) is not None:
            devices[rank] = DeviceInfo(rank=rank, host=found["host"], device=found["device"], device_type="cuda")
        elif HEADER.match(line):
            columns = line.lstrip("# ").split()
        elif line.startswith("#"):
            program = _find_program(line) or program
        elif columns and len(words := line.split()) == len(columns) and (size := read_count(words[0])) is not None:
            rows.append(Row(program, size, words[columns.index("type")], _pick_times(columns, words, name)))
    return rows, tuple(devices.values()), len(devices)


def _pick_times(columns: list[str], words: list[str], name: str) -> tuple[float, ...]:
    try:
        return tuple(float(word) for column, word in zip(columns, words, strict=True) if column in TIMES)
    except ValueError as error:
        raise InputError(f"{name} has a time that is no number ({error}): {HOW_TO}.") from error


def _read_json(data: bytes, name: str) -> tuple[list[Row], tuple[DeviceInfo, ...], int]:
    try:
        document = msgspec.json.decode(data, type=_Document)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(f"{name} is no JSON of nccl-tests ({error}): {HOW_TO}.") from error
    program = _find_program(document.args[0]) if document.args else ""
    rows = []
    for result in document.results:
        measured = [times for times in (result.out_of_place, result.in_place) if times is not None]
        times = [times.time if times.time is not None else times.cpu_time for times in measured]
        rows.append(Row(program, result.size, result.type, tuple(time for time in times if time is not None)))
    config = document.config
    devices = tuple(
        DeviceInfo(rank=d.rank, host=d.hostname, device=d.device_info, device_type="cuda") for d in config.devices
    )
    return rows, devices, max(1, len(devices)) * config.nthreads * config.ngpus
