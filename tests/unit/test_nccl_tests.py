"""Outputs of nccl-tests, written here in its formats: text of several versions, and JSON."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from advisor.errors import InputError
from advisor.readers.locations import LocalFile
from advisor.readers.nccl_tests import read_nccl_tests
from advisor.schema import Ladder

RANKS = "\n".join(
    f"#  Rank {rank:2d} Group  0 Pid   41{rank} on   node{rank // 2} device {rank % 2:2d} [0000:0{rank}:00] NVIDIA H100"
    for rank in range(4)
)
HEADER = """
# nThread 1 nGpus 1 minBytes 1048576 maxBytes 4194304 step: 4(factor) warmup iters: 5 iters: 20 validation: 1 graph: 0
#
# Using devices
{ranks}
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""
ROWS = """
     1048576        262144     float     sum      -1    40.00   26.21   39.32      0    41.00   25.58   38.36      0
     4194304       1048576     float     sum      -1   100.50   41.73   62.60      0   1.2e+02  34.95   52.43    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 48.1775
#
"""
OLDER = """
# Using devices
{ranks}
#
#                                                       out-of-place                       in-place
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        524288    half     sum    40.00   26.21   39.32  2e-03    41.00   25.58   38.36  2e-03
"""


def read(folder: Path, text: str | bytes, name: str = "all_reduce_perf.txt") -> Ladder:
    file = folder / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_nccl_tests(LocalFile(file))


def times_of(ladder: Ladder) -> dict[int, tuple[tuple[int, ...], ...]]:
    return {point.num_bytes: point.rounds_ns for point in ladder.points}


def test_text_is_read_with_its_ranks_and_devices(tmp_path: Path) -> None:
    ladder = read(tmp_path, HEADER.format(ranks=RANKS) + ROWS)
    assert (ladder.source, ladder.world_size, ladder.backend) == ("nccl_tests", 4, "nccl")
    assert [(d.rank, d.host, d.device) for d in ladder.devices][2] == (2, "node1", "NVIDIA H100")
    assert {(p.kind, p.dtype) for p in ladder.points} == {("all_reduce", "float32")}
    assert times_of(ladder) == {2**20: ((40_000,), (41_000,)), 2**22: ((100_500,), (120_000,))}


def test_an_older_text_without_a_root_is_read(tmp_path: Path) -> None:
    (point,) = read(tmp_path, OLDER.format(ranks=RANKS)).points
    assert (point.dtype, point.num_bytes, point.rounds_ns) == ("float16", 2**20, ((40_000,), (41_000,)))


@pytest.mark.parametrize(
    ("program", "kind", "num_bytes"),
    [
        ("all_reduce_perf", "all_reduce", 2**20),
        ("reduce_scatter_perf", "reduce_scatter", 2**20),
        ("all_gather_perf", "all_gather", 2**18),  # the size it prints is that of all four ranks together
    ],
)
def test_the_program_tells_the_collective_and_its_size(tmp_path: Path, program: str, kind: str, num_bytes: int) -> None:
    text = f"# Collective test starting: {program}\n{HEADER.format(ranks=RANKS)}{ROWS}"
    point, _ = read(tmp_path, text, "output.log").points
    assert (point.kind, point.num_bytes) == (kind, num_bytes)


@pytest.mark.parametrize("odd", ["nan", "inf", "1e999", "-5.0", "0"])
def test_a_time_that_cannot_be_is_left_out(tmp_path: Path, odd: str) -> None:
    ladder = read(tmp_path, HEADER.format(ranks=RANKS) + ROWS.replace("40.00", odd))
    assert times_of(ladder)[2**20] == ((41_000,),)


@pytest.mark.parametrize("odd", ["²", "-1", "0", "1" + "0" * 20, "9" * 5000])
def test_a_size_that_cannot_be_is_left_out(tmp_path: Path, odd: str) -> None:
    ladder = read(tmp_path, HEADER.format(ranks=RANKS) + ROWS.replace("1048576        262144", f"{odd} 262144"))
    assert [*times_of(ladder)] == [2**22]


def test_json_is_read_compressed_too(tmp_path: Path) -> None:
    result = {
        "size": 2**20, "count": 2**18, "type": "bfloat16", "redop": "sum", "root": "    -1",
        "out_of_place": {"time": 40.0, "alg_bw": 26.2, "bus_bw": 39.3, "nwrong": 0.0},
        "in_place": {"cpu_time": 41.0, "alg_bw": 25.6, "bus_bw": 38.4, "nwrong": None},
        "actual_iterations": 20,
    }  # fmt: skip
    devices = [{"rank": 0, "hostname": "node0", "device_info": "NVIDIA H100"}]
    document = {
        "version": 2,
        "args": ["./build/all_reduce_perf", "-J", "out.json"],
        "config": {"nthreads": 1, "ngpus": 8, "devices": devices},
        "results": [result, {**result, "size": 0}, {**result, "size": 2**21, "out_of_place": None}],
    }
    ladder = read(tmp_path, gzip.compress(json.dumps(document).encode()), "out.json.gz")
    assert ladder.world_size == 8  # one process with eight GPUs lists only its first device
    assert times_of(ladder) == {2**20: ((40_000,), (41_000,)), 2**21: ((41_000,),)}
    assert {point.dtype for point in ladder.points} == {"bfloat16"}


@pytest.mark.parametrize(
    ("text", "name", "sentence"),
    [
        ("hello", "all_reduce_perf.txt", "holds no measurement of nccl-tests"),
        (HEADER.format(ranks="") + ROWS, "all_reduce_perf.txt", "does not say that it ran on several ranks"),
        (HEADER.format(ranks=RANKS) + ROWS, "output.txt", "does not say which collective it measured"),
        ('{"results": 3}', "out.json", "is no JSON of nccl-tests"),
        (HEADER.format(ranks=RANKS) + ROWS.replace("40.00", "4O.00"), "all_reduce_perf.txt", "time that is no number"),
        (b"\xff\xfe\x00{", "all_reduce_perf.txt", "holds no measurement of nccl-tests"),
        (
            '{"args": ["all_reduce_perf"], "config": {"ngpus": 2}, '
            '"results": [{"size": 8, "type": "float", "out_of_place": {"time": -3}}]}',
            "out.json",
            "holds no measurement of nccl-tests",
        ),
    ],
)
def test_what_cannot_be_used_is_a_sentence(tmp_path: Path, text: str | bytes, name: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        read(tmp_path, text, name)
