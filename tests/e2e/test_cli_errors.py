"""Bad input is answered with one sentence and exit code 2; no traceback, nothing written."""

from __future__ import annotations

import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from advisor.cli import app
from tests.e2e.conftest import ddp_advisor


def _list(folder: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with everything that is no trace."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "cat.png").write_bytes(b"\x89PNG\r\n")
    (tmp_path / "notes.json").write_text("Dear diary, no trace today.")
    (tmp_path / "package.json").write_text('{"name": "not-a-trace", "version": "1.0.0"}')
    (tmp_path / "one.json").write_bytes(b"{")
    (tmp_path / "nothing.json").write_bytes(b"")
    (tmp_path / "rank0.pt.trace.json.gz").write_bytes(b"not gzip at all")
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        ["analyze", "missing"],
        ["analyze", "missing.json"],
        ["analyze", "empty"],
        ["analyze", "pictures"],
        ["analyze", "notes.json"],
        ["analyze", "package.json"],
        ["analyze", "one.json"],
        ["analyze", "nothing.json"],
        ["analyze", "rank0.pt.trace.json.gz"],
        ["analyze", "missing", "--json"],
        ["analyze", "missing", "--out", "here"],
        ["analyze", "empty", "--out", "notes.json"],
        ["analyze", "empty", "--out", "notes.json/below"],
        ["doctor", "missing"],
        ["doctor", "missing", "--json"],
        ["doctor", "empty", "--ranks", "one"],
        ["report", "missing"],
        ["report", "empty"],
        ["report", "package.json"],
        ["probe", "--collective", "reduce"],
        ["probe", "--budget", "nonsense"],
        ["probe", "--budget", "0"],
        ["probe", "--out", "missing/probe.json"],
        ["schema", "trace"],
        ["run", "no-such-workload"],
        ["run", "mlp", "--preset", "huge"],
        ["run", "missing.py:factory"],
        ["run", "mlp", "--option", "depth"],
        ["run", "mlp", "--out", "pictures"],
    ],
    ids=" ".join,
)
def test_bad_input_is_one_sentence(inputs: Path, arguments: list[str]) -> None:
    before = _list(inputs)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert result.stderr.endswith(".\n")
    assert _list(inputs) == before


def test_a_person_sees_the_same(tmp_path: Path) -> None:
    done = ddp_advisor("analyze", "missing", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("error: missing does not exist")


def test_a_report_that_does_not_fit_leaves_nothing_behind(demo: tuple[Path, str], tmp_path: Path) -> None:
    run = shutil.copytree(demo[0], tmp_path / "run")
    before = _list(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "advisor", "analyze", run, "--out", tmp_path / "new"],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000)),
    )
    assert done.returncode == 2
    assert done.stderr == (
        f"error: The report cannot be written into {tmp_path / 'new'} (File too large): "
        "choose another folder with --out.\n"
    )
    assert _list(tmp_path) == before


def test_an_interrupted_run_ends_in_a_line_and_leaves_nothing(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "advisor", "run", "mlp", "--steps", "100000", "--out", "run"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts background jobs deaf to Ctrl-C, and this test may be one of them.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        while not (tmp_path / "run").exists() and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    finally:
        process.terminate()
        process.wait(60)
    assert (process.returncode, stdout, stderr) == (130, "", "error: interrupted.\n")
    assert list(tmp_path.iterdir()) == []
