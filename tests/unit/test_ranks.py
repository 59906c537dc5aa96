"""What file names tell: ranks in the usual patterns, and everything that only looks like one."""

from __future__ import annotations

import pytest

from advisor.readers.ranks import find_process, find_time_ns, guess_rank, strip_numbers

TORCHREC = "host_21147.1698955063520869240.pt.trace.json.gz"
DLRM = "worker0_step_12.1694128201545.pt.trace.json.gz"


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank3.pt.trace.json.gz", 3),
        ("baseline-220ff-rank6-chrome-trace.json.gz", 6),
        ("sampled_rank-1.json.gz", 1),
        ("Rank_12.json", 12),
        ("trace_rank_00012.json", 12),
        ("rank=4.json.zst", 4),
        ("rank0of8.json", 0),
        ("rank0_iter16_18.json", 0),
        ("rank7_trace.json", 7),
        ("node1-rank9.json", 9),
        ("rank2_4711.1698955063520869240.pt.trace.json", 2),
        ("trace0.json", 0),
        ("trace.3.json.zst", 3),
        ("worker5.1698955063520869240.pt.trace.json", 5),
        ("worker0_step_12.json", 0),
        (DLRM, 0),
        ("gpu1.json", 1),
        ("ddp_r1.json", 1),
        ("local_rank_2.json", 2),
        ("profile-3.json", 3),
        ("0.json", 0),
    ],
)
def test_the_rank_that_a_name_suggests(name: str, rank: int) -> None:
    assert guess_rank(name) == rank


@pytest.mark.parametrize(
    "name",
    [
        TORCHREC,
        "bert-worker-0_57.1698955063520869240.pt.trace.json",
        "worker0_4194303.1698955063520869240.pt.trace.json",
        "frankfurt_57.1698955063520869240.pt.trace.json",
        "node1_local_rank2.json",
        "nccl_data.json.gz",
        "resnet50.json",
        "gpt2.json.gz",
        "llama-7b.json",
        "step_100.json",
        "trace_20240131.json",
        "a_1698955063.json",
        "chrome-trace.json",
    ],
)
def test_other_numbers_are_no_ranks(name: str) -> None:
    assert guess_rank(name) is None


def test_the_folder_may_tell_the_rank() -> None:
    assert guess_rank("trace.json", "runs/rank3") == 3
    assert guess_rank("trace.json", "rank0of8/sub") == 0
    assert guess_rank("rank1.json", "runs/rank3") == 1
    assert guess_rank("trace.json", "what_is_a_rank_3") is None


def test_torch_writes_process_and_time_into_its_names() -> None:
    assert (find_process(TORCHREC), find_time_ns(TORCHREC)) == ("21147", 1698955063520869240)
    assert (find_process(DLRM), find_time_ns(DLRM)) == (None, 1694128201545000000)
    assert (find_process("rank0.json"), find_time_ns("rank0.json")) == (None, None)


def test_a_name_without_its_numbers_is_the_same_for_all_ranks() -> None:
    assert strip_numbers("fast-220ff-rank6.json") == "fast-#-rank#.json"
    assert strip_numbers("slow_rank0.json") == strip_numbers("slow_rank1.json") != strip_numbers("fast_rank1.json")
