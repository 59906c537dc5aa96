"""What doctor says of other people's recordings, and that it says nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.doctor.diagnosis import diagnose
from advisor.schema import FindingCode, Quality


@pytest.mark.parametrize(
    ("folder", "quality", "codes"),
    [
        # Rank 1 of 2 is missing, and no shapes were recorded, but NCCL's collectives tell their size.
        ("a100-resnet50-ddp-rank0of2", "usable", ["missing_ranks", "no_shapes", "shared_path", "few_steps"]),
        # 7 of 8 ranks are missing; three quarters of the events are Python stacks and the like.
        ("mi300-resnet-ddp-rank0of8", "usable", ["missing_ranks", "shared_path", "few_steps", "stacks"]),
        # All ranks and all sizes, but one step, and one of 16 gradients is sparse.
        ("v100-dlrm-ddp-8rank", "usable", ["unmatched_gradients", "one_step"]),
        # A DDP module whose gradients nobody reduces in the window.
        ("v100-torchrec-ddp-straggler-4rank", "usable", ["no_exchange", "few_steps"]),
        # Well recorded, and no DDP.
        ("h100-nanogpt-8rank", "usable", ["no_ddp", "few_steps"]),
        # Events were sampled, so the gradients' operators are gone.
        ("sampled-2of128rank", "usable", ["missing_ranks", "unmatched_gradients", "few_steps"]),
        # One all-reduce on each rank, and neither steps nor DDP.
        ("rtx4090-allreduce-2rank-nosteps", "unusable", ["no_steps", "no_ddp"]),
        # One file of 2022 that does not say of how many ranks.
        (
            "cpu-gloo-legacy-1rank",
            "unusable",
            ["unknown_world_size", "no_collective_sizes", "no_shapes", "no_steps"],
        ),
    ],
)
def test_every_real_recording_gets_its_findings_and_no_others(
    trace_corpus: Path, folder: str, quality: Quality, codes: list[FindingCode]
) -> None:
    diagnosis = diagnose([trace_corpus / folder])
    (run,) = diagnosis.runs
    assert [finding.code for finding in run.findings] == codes
    assert (diagnosis.quality, run.quality) == (quality, quality)
    assert (diagnosis.left_out, run.left_out) == ((), ())


def test_the_mi300_s_stacks_are_most_of_its_file(trace_corpus: Path) -> None:
    (run,) = diagnose([trace_corpus / "mi300-resnet-ddp-rank0of8"]).runs
    unread, num_bytes = (evidence.value for evidence in run.findings[-1].evidence)
    assert unread == pytest.approx(0.74, abs=0.01)
    assert num_bytes == 16_810_209


def test_all_of_them_at_once_are_eight_runs(trace_corpus: Path) -> None:
    diagnosis = diagnose([trace_corpus])
    assert len(diagnosis.runs) == 8
    assert sorted(len(run.ranks) for run in diagnosis.runs) == [1, 1, 1, 2, 2, 4, 8, 8]
