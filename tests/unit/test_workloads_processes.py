from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from advisor.errors import RunError, UsageError
from workloads.exchange import Failure, Progress, ProgressReader, Reporter, leave_failure, leave_pid, read_pids
from workloads.processes import WORKER, explain_failure, training_environment

KILLED = """
W1129 12:00:00.000000 1 torch/distributed/elastic/multiprocessing/api.py:1] Sending process 5 closing signal SIGTERM
a last word of the rank
[rank0]: RuntimeError: Connection reset by peer
Traceback (most recent call last):
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Failures:
[1]:
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 5)  (SIGTERM)
Root Cause (first observed failure):
[0]:
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 6)  (SIGKILL)
"""


def failure(rank: int, time_ns: int, kind: str, message: str) -> Failure:
    return Failure(rank=rank, time_ns=time_ns, kind=kind, message=message, trace=f"trace of rank {rank}")


@pytest.fixture
def exchange(tmp_path: Path) -> Path:
    (tmp_path / "stderr").write_text("")
    return tmp_path


def test_the_first_failure_is_the_cause(exchange: Path) -> None:
    leave_failure(exchange, failure(0, 200, "RuntimeError", "Connection closed by peer"))
    leave_failure(exchange, failure(1, 100, "ValueError", "no such column\nand more"))
    error = explain_failure(exchange)
    assert isinstance(error, RunError)
    assert str(error) == "Rank 1 failed with ValueError: no such column"
    assert error.__notes__ == ["trace of rank 1"]


def test_a_sentence_of_ours_comes_back_as_it_was(exchange: Path) -> None:
    leave_failure(exchange, failure(0, 100, "UsageError", "There is no GPU here."))
    error = explain_failure(exchange)
    assert isinstance(error, UsageError)
    assert str(error) == "There is no GPU here."


def test_a_killed_rank_is_the_cause_though_its_peer_speaks_first(exchange: Path) -> None:
    (exchange / "stderr").write_text(KILLED)
    leave_failure(exchange, failure(0, 100, "RuntimeError", "Connection reset by peer"))
    error = explain_failure(exchange)
    assert str(error) == "Rank 1 was killed by signal 9 (SIGKILL)."
    assert error.__notes__ == ["a last word of the rank"]


def test_an_end_without_a_word_is_still_a_sentence(exchange: Path) -> None:
    assert str(explain_failure(exchange)) == "The training processes could not be started or ended without a word."


def test_progress_comes_as_whole_lines_and_only_once(tmp_path: Path) -> None:
    reader = ProgressReader(tmp_path)
    assert reader.read() == []
    reporter = Reporter(tmp_path, rank=0)
    reporter.report(1, 2, "first")
    with (tmp_path / "progress.jsonl").open("ab") as file:
        file.write(b'{"done":2,')
    assert reader.read() == [Progress(done=1, total=2, text="first")]
    assert reader.read() == []
    with (tmp_path / "progress.jsonl").open("ab") as file:
        file.write(b'"total":2,"text":"second"}\n')
    assert reader.read() == [Progress(done=2, total=2, text="second")]


def test_only_rank_0_reports(tmp_path: Path) -> None:
    Reporter(tmp_path, rank=1).report(1, 2, "unheard")
    assert list(tmp_path.iterdir()) == []


def test_the_launcher_knows_every_ranks_process(tmp_path: Path) -> None:
    leave_pid(tmp_path, rank=0, pid=11)
    leave_pid(tmp_path, rank=1, pid=12)
    assert sorted(read_pids(tmp_path)) == [11, 12]


def test_cores_are_shared_out_unless_a_person_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert training_environment(2)["OMP_NUM_THREADS"] == "4"
    assert training_environment(16)["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert training_environment(2)["OMP_NUM_THREADS"] == "3"


def test_a_rank_that_fails_leaves_its_reason_for_the_launcher(exchange: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (exchange / "request.json").write_text("{}")
    (exchange / "workloads.py").write_text("raise RuntimeError('a module of the person, with our name')")
    monkeypatch.chdir(exchange)
    environment = {**os.environ, "RANK": "1"}
    worker = subprocess.run([sys.executable, WORKER, exchange], env=environment, capture_output=True, text=True)
    assert worker.returncode == 1
    assert str(explain_failure(exchange)).startswith("Rank 1 failed with ValidationError: ")
    assert "ValidationError" in worker.stderr
    assert len(read_pids(exchange)) == 1
