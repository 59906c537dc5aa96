"""`ddp-advisor check` on a job of one's own that feeds every rank the same samples."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

JOB = """
import torch
from torch import nn
from workloads.job import Job

def build(context):
    def batches(rank, step):
        generator = torch.Generator().manual_seed(step)  # the same on every rank
        return torch.randn(8, 4, generator=generator)

    return Job(
        model=nn.Linear(4, 1),
        loss=lambda model, batch: model(batch).square().mean(),
        batches=batches,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
"""


def test_a_job_whose_ranks_read_the_same_samples_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(JOB)
    done = subprocess.run(
        [sys.executable, "-m", "advisor", "check", "mine.py:build"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "✗ ranks read different samples" in done.stdout
    assert done.stdout.count("✓") == 3
    assert done.stderr.startswith("error: 1 of 4 checks of mine.py:build failed: ranks read different samples.")
    assert "Traceback" not in done.stderr
