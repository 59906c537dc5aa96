"""Who reads the ranks: processes that end with the work or with their parent, or a Dask cluster; the Report is one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from advisor.cli import app
from advisor.errors import InputError, UsageError
from advisor.executors import choose_workers, open_executor
from advisor.pipeline import analyze
from advisor.readers.run_files import RunFiles, find_run
from advisor.schema import Report
from tests.trace_files import pack_tar, write_ranks
from tests.unit.test_pipeline import record_rank

NUM_RANKS = 12
WAITING = """
import os, sys, time
from advisor.cli._failures import tell_failures
from advisor.executors import choose_workers, open_executor
from advisor.readers.run_files import find_run

def wait(place):
    with open(f"{place}/{os.getpid()}", "w"):
        time.sleep(600)

@tell_failures
def work():
    with open_executor(2, find_run(sys.argv[1:2])) as executor:
        list(executor.map(wait, sys.argv[2:] * 2))

if __name__ == "__main__":
    import typer

    try:
        work()
    except typer.Exit as stop:
        sys.exit(stop.exit_code)
"""


def write_run(folder: Path, num_ranks: int) -> Path:
    """Ranks with steps and buckets; all alike, so that one is made and renumbered."""
    folder.mkdir()
    trace = record_rank(0)
    trace.world_size = num_ranks
    for trace.rank in range(num_ranks):
        (folder / f"rank{trace.rank}.json").write_bytes(trace.to_json())
    return folder


def empty_rank(file: Path) -> None:
    """Leaves a trace without events that are read."""
    file.write_bytes(file.read_bytes().replace(b'"ph": "X"', b'"ph": "B"'))


def without_times(report: Report) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(report, created=""))


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of many small ranks."""
    return write_run(tmp_path_factory.mktemp("runs") / "many", NUM_RANKS)


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> RunFiles:
    """The files of a run of two ranks."""
    return find_run([write_ranks(tmp_path_factory.mktemp("runs") / "few")])


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    """The address of a real cluster with a scheduler and two worker processes."""
    distributed = pytest.importorskip("distributed", reason="a Dask cluster needs the extra `cluster`")
    import dask

    size = {"n_workers": 2, "threads_per_worker": 1}
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        distributed.LocalCluster(**size, dashboard_address=":0", silence_logs="CRITICAL") as cluster,
    ):
        yield cluster.scheduler_address


# ------------------------------------------------------------------------------------------------- the same report


def test_the_report_is_the_same_whoever_reads_the_ranks(many: Path, scheduler: str) -> None:
    here = analyze([many])
    assert len(here.ranks) == NUM_RANKS
    assert without_times(analyze([many], workers=2)) == without_times(here)
    assert without_times(analyze([many], workers=scheduler)) == without_times(here)


def test_an_unreadable_rank_is_named_and_does_not_stop_the_others(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 4)
    empty_rank(run / "rank2.json")
    report = analyze([run], workers=2)
    assert [rank.rank for rank in report.ranks] == [0, 1, 3]
    assert [note.message for note in report.notes if note.left_out] == [
        f"Left out: {run}/rank2.json holds no timed events: record it with torch.profiler and export_chrome_trace."
    ]
    assert without_times(report) == without_times(analyze([run]))
    shown = CliRunner().invoke(app, ["analyze", str(run), "--workers", "1", "--out", str(tmp_path / "out")]).stdout
    assert shown.splitlines()[-1].startswith(f"Left out: {run}/rank2.json holds no timed events")


def test_no_readable_rank_is_an_error(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 2)
    for file in run.iterdir():
        empty_rank(file)
    with pytest.raises(InputError, match=r"rank0\.json holds no timed events"):
        analyze([run], workers=2)


def test_what_workers_cannot_open_is_read_without_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run", 2)
    packed = tmp_path / "packed.tar"
    packed.write_bytes(pack_tar({file.name: file.read_bytes() for file in run.iterdir()}))
    with packed.open() as piped:
        monkeypatch.setattr(sys, "stdin", piped)
        report = analyze(["-"], workers=2)
    assert [rank.file for rank in report.ranks] == ["standard input/rank0.json", "standard input/rank1.json"]
    assert report.notes[0].message == (
        "Workers could not open the files of 2 of 2 ranks, so these were read without them."
    )


def test_workers_elsewhere_open_files_by_the_folder_they_were_named_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheduler: str
) -> None:
    write_run(tmp_path / "run", 2)
    monkeypatch.chdir(tmp_path)
    report = analyze(["run"], workers=scheduler)
    assert [rank.file for rank in report.ranks] == ["run/rank0.json", "run/rank1.json"]
    assert not any("Workers could not open" in note.message for note in report.notes)


def test_processes_are_started_where_they_pay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks are one tenth of a second; 4 s of work are 160 MB of text, or 11 MB of it compressed."""
    monkeypatch.setattr("advisor.executors._count_cores", lambda: 8)
    run = write_ranks(tmp_path / "run")
    assert choose_workers(find_run([run])) == 1
    assert choose_workers(find_run([write_ranks(tmp_path / "many", 80)])) == 8
    os.truncate(run / "rank1.json", 11 * 10**6)  # its end is a hole and takes no space
    assert choose_workers(find_run([run])) == 1
    (run / "rank1.json").rename(run / "rank1.json.gz")
    assert choose_workers(find_run([run])) == 8


# ------------------------------------------------------------------------------------------------------ failures


def die(_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_process_is_one_sentence(few: RunFiles) -> None:
    with pytest.raises(UsageError, match=r"A worker process was killed, .* take fewer with --workers"):  # noqa: SIM117
        with open_executor(2, few) as executor:
            assert executor is not None
            list(executor.map(die, range(3)))


def test_a_killed_worker_of_a_cluster_is_one_sentence(few: RunFiles, scheduler: str) -> None:
    with pytest.raises(UsageError, match=r"^Workers of the Dask scheduler at tcp://.* were killed"):  # noqa: SIM117
        with open_executor(scheduler, few) as executor:
            assert executor is not None
            list(executor.map(die, [0]))


@pytest.mark.parametrize("address", ["nonsense", "tcp://127.0.0.1:x", "smtp://127.0.0.1:25"])
def test_an_address_that_cannot_be_meant_is_one_sentence(few: RunFiles, address: str) -> None:
    pytest.importorskip("distributed", reason="a Dask cluster needs the extra `cluster`")
    with pytest.raises(UsageError, match=f"^Cannot reach the Dask scheduler at {address} .*tcp://host:8786"):  # noqa: SIM117
        with open_executor(address, few):
            pass


def test_a_scheduler_that_does_not_answer_is_one_sentence(few: RunFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason="a Dask cluster needs the extra `cluster`")
    monkeypatch.setattr("advisor.executors.CONNECT_S", 0.2)
    with pytest.raises(UsageError, match=r"^Cannot reach the Dask scheduler at tcp"):  # noqa: SIM117
        with open_executor("tcp://127.0.0.1:9", few):
            pass


def test_a_missing_extra_is_one_sentence(few: RunFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UsageError, match=r"pip install 'ddp-advisor\[cluster\]'"), open_executor("tcp://h:1", few):
        pass


def test_workers_and_a_cluster_together_are_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["analyze", str(tmp_path), "--workers", "2", "--scheduler", "tcp://h:1"])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["interrupted", "killed"])
def test_workers_end_with_the_command(tmp_path: Path, number: signal.Signals) -> None:
    """After Ctrl-C or a kill nothing is left; after Ctrl-C a worker says nothing of its own."""
    run, marks = write_ranks(tmp_path / "run"), tmp_path / "marks"
    marks.mkdir()
    (tmp_path / "waiting.py").write_text(WAITING)
    process = subprocess.Popen(
        [sys.executable, tmp_path / "waiting.py", run, marks],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        while len(workers := [int(file.name) for file in marks.iterdir()]) < 2 and process.poll() is None:
            time.sleep(0.05)
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # a terminal's Ctrl-C reaches the workers too
        else:
            process.send_signal(number)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait(60)
    if number == signal.SIGINT:
        assert (process.returncode, output) == (130, "error: interrupted.\n")
    deadline = time.monotonic() + 60
    while any(map(is_alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_alive, workers))


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"
