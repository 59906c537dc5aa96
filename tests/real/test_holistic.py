"""HTA and we see the same overlap on every real GPU trace, and its other answers agree with what is known of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest

from advisor.holistic import MOST_KERNELS, MOST_RANKS, examine_rank, merge_answers
from advisor.readers.run import read_run
from advisor.schema import Holistic
from advisor.tables import Trace

pytest.importorskip("hta", reason="asking HolisticTraceAnalysis needs the extra `hta`")

US = 1000
RANKS = {
    "a100-resnet50-ddp-rank0of2": 1,
    "h100-nanogpt-8rank": 8,
    "mi300-resnet-ddp-rank0of8": 1,
    "rtx4090-allreduce-2rank-nosteps": 2,
    "sampled-2of128rank": 2,
    "v100-dlrm-ddp-8rank": 8,
    "v100-torchrec-ddp-straggler-4rank": 4,
}


def examine(traces: Sequence[Trace]) -> Holistic:
    handed = traces[:MOST_RANKS]
    return merge_answers([examine_rank(trace, MOST_KERNELS // len(handed)) for trace in handed], len(traces))


@pytest.fixture(scope="module")
def ask(trace_corpus: Path) -> Callable[[str], Holistic]:
    """HTA's answers about a folder of the corpus, asked for once."""
    return cache(lambda name: examine(read_run([trace_corpus / name]).traces))


@pytest.mark.parametrize("name", RANKS)
def test_both_see_the_same_overlap_on_every_rank(ask: Callable[[str], Holistic], name: str) -> None:
    holistic = ask(name)
    assert holistic.messages == ()
    assert len(holistic.ranks) == RANKS[name]
    assert holistic.disagreements == ()
    for rank in holistic.ranks:
        assert rank.overlap is not None
        assert rank.overlap.misread == ()
        assert rank.overlap.hta_fraction == pytest.approx(rank.overlap.ours_fraction, abs=0.5e-4 + 1e-9)


@pytest.mark.parametrize("name", RANKS)
def test_its_tables_fit_together(ask: Callable[[str], Holistic], name: str) -> None:
    for rank in ask(name).ranks:
        time = rank.device_time
        assert time.idle_ns + time.computation_ns + time.other_ns == time.span_ns
        assert sum(kind.total_ns for kind in rank.kinds) == time.span_ns - time.idle_ns
        computation = [kind.total_ns for kind in rank.kinds if "computation" in kind.kinds]
        assert sum(computation) == time.computation_ns
        assert {idle.stream for idle in rank.idle} == {queue.stream for queue in rank.queues}
        assert all(kernel.min_ns <= kernel.mean_ns <= kernel.max_ns for kernel in rank.kernels)


def test_the_a100_s_unions_are_those_computed_apart(ask: Callable[[str], Holistic]) -> None:
    """The corpus' README has 115655.847 µs of computation and 7317.025 µs of overlap, over all kernels."""
    (rank,) = ask("a100-resnet50-ddp-rank0of2").ranks
    assert rank.num_kernels == rank.num_recorded_kernels
    assert rank.device_time.computation_ns == 115_655_847
    both = [kind.total_ns for kind in rank.kinds if {"computation", "communication"} <= set(kind.kinds)]
    assert sum(both) == 7_317_025


def test_the_straggler_s_device_idles_where_the_others_wait_in_collectives(ask: Callable[[str], Holistic]) -> None:
    idle = [
        rank.device_time.idle_ns / rank.device_time.span_ns for rank in ask("v100-torchrec-ddp-straggler-4rank").ranks
    ]
    assert [round(share, 2) for share in idle] == [0.04, 0.04, 0.95, 0.04]
