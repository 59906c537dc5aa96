"""`ddp-advisor probe` on two real processes, for a few seconds, and a run analysed with what it measured."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from advisor.schema import Ladder, read_json, read_report
from tests.e2e.conftest import ddp_advisor

KIB = 2**10


def test_a_probe_measures_what_its_budget_allows_and_a_run_is_analysed_with_it(
    tmp_path: Path, demo: tuple[Path, str]
) -> None:
    kinds = ("--collective", "all_reduce,broadcast")
    done = ddp_advisor("probe", *kinds, "--budget", "3s", "--backend", "gloo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "collectives on 2 ranks, gloo" in done.stdout
    assert "Left out for lack of time" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["probe.json"]
    ladder = read_json(Ladder, tmp_path / "probe.json")
    assert (ladder.source, ladder.world_size, ladder.backend) == ("probe", 2, "gloo")
    middle = {(point.kind, point.dtype) for point in ladder.points if point.num_bytes == 256 * KIB}
    assert {("all_reduce", "float32"), ("broadcast", "float32")} <= middle
    assert all(min(visit) > 0 for point in ladder.points for visit in point.rounds_ns)
    assert len(ladder.devices) == 2
    assert any("float32" in sentence for sentence in ladder.left_out)

    analysed = ddp_advisor("analyze", demo[0], "--probe", "probe.json", "--out", "out", cwd=tmp_path)
    assert analysed.returncode == 0, analysed.stderr
    report = read_report(tmp_path / "out")
    used = any("probe" in model.sources for model in report.comm_models)
    assert used or any(note.message.startswith("The probe measured") for note in report.notes)


@dataclass(frozen=True)
class Probing:
    """A probe that runs in a folder with an older `probe.json`, and what it exchanges with its ranks."""

    process: subprocess.Popen[str]
    folder: Path

    def wait_until(self, glob: str, word: str = "") -> Path:
        """The first file below its temporary folder that matches and holds the word."""
        while self.process.poll() is None:
            for file in (self.folder / "tmp").glob(glob):
                if word in file.read_text():
                    return file
            time.sleep(0.05)
        raise AssertionError(self.process.communicate())

    def read_pids(self) -> list[int]:
        """Of the ranks that have started."""
        return [int(text) for file in (self.folder / "tmp").glob("*/rank*.pid") if (text := file.read_text())]


@contextmanager
def probing(folder: Path) -> Iterator[Probing]:
    (folder / "tmp").mkdir()
    (folder / "probe.json").write_text("old")
    process = subprocess.Popen(
        [sys.executable, "-m", "advisor", "probe", "--budget", "600s", "--backend", "gloo"],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder / "tmp")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts background jobs deaf to Ctrl-C, and this test may be one of them.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        yield Probing(process, folder)
    finally:
        process.terminate()
        process.wait(60)


def assert_nothing_is_left(probe: Probing, pids: list[int]) -> None:
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
    assert (probe.folder / "probe.json").read_text() == "old"
    assert sorted(path.name for path in probe.folder.iterdir()) == ["probe.json", "tmp"]
    assert list((probe.folder / "tmp").iterdir()) == []


@pytest.mark.parametrize(("glob", "word"), [("*/request.json", ""), ("*/progress.jsonl", "under compute")])
def test_an_interrupted_probe_ends_in_a_line_and_leaves_nothing(tmp_path: Path, glob: str, word: str) -> None:
    """While its ranks start, and while they compute beside collectives."""
    with probing(tmp_path) as probe:
        probe.wait_until(glob, word)
        pids = probe.read_pids()
        probe.process.send_signal(signal.SIGINT)
        stdout, stderr = probe.process.communicate(timeout=60)
        assert (probe.process.returncode, stdout, stderr) == (130, "", "error: interrupted.\n")
        assert_nothing_is_left(probe, pids)


def test_a_rank_that_is_killed_ends_the_probe_with_a_sentence(tmp_path: Path) -> None:
    with probing(tmp_path) as probe:
        pid_file = probe.wait_until("*/progress.jsonl").with_name("rank1.pid")
        pids = probe.read_pids()
        os.kill(int(pid_file.read_text()), signal.SIGKILL)
        stdout, stderr = probe.process.communicate(timeout=60)
        assert probe.process.returncode != 0
        assert (stdout, stderr) == ("", "error: Rank 1 was killed by signal 9 (SIGKILL).\n")
        assert_nothing_is_left(probe, pids)
