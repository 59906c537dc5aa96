"""Starts training processes with torchrun, listens to them, and ends them: the side that imports no torch.

Whatever happens (a failing rank, a hang, Ctrl-C), no process stays behind and a person reads one sentence.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import msgspec

from advisor.errors import AdvisorError, InputError, RunError, UsageError
from workloads.exchange import REQUEST, STDERR, STDOUT, ProgressReader, read_first_failure, read_pids
from workloads.requests import Request, silence_limit_s

WORKER = Path(__file__).resolve().parent / "worker.py"
POLL_S = 0.1
GRACE_S = 8.0
"""How long torchrun may take to end its ranks before they are killed."""
START_S = 120.0
"""Importing torch and meeting the other ranks, on a slow disk."""
OWN_ERRORS: dict[str, type[AdvisorError]] = {kind.__name__: kind for kind in (UsageError, InputError, RunError)}

FOREIGN_LINE = re.compile(r"\[rank\d+\]:|\[?[EWI]\d{4} ")
"""torchrun's and torch's logs, and tracebacks of ranks that only lost their peer."""

OnProgress = Callable[[int, int, str], None]
"""Called with steps done, steps in all and one line for a person."""


def launch(request: Request, on_progress: OnProgress | None = None, *, timeout_s: float) -> None:
    """Runs the task of `request` on `request.config.world_size` processes of this machine until it is done.

    Args:
        request: One of the structs of `workloads.requests`.
        on_progress: Called for every report of rank 0.
        timeout_s: Limit for the whole task; the request has its own for the time between two reports of rank 0.

    Raises:
        AdvisorError: The error that a rank raised for a person to read.
        RunError: A rank failed otherwise, or a limit passed.
    """
    if importlib.util.find_spec("torch") is None:
        raise UsageError("Training needs torch, which is not installed: pip install 'ddp-advisor[workloads]'.")
    with tempfile.TemporaryDirectory(prefix="ddp-advisor-") as name:
        exchange = Path(name)
        (exchange / REQUEST).write_bytes(msgspec.json.encode(request))
        with _ended_by_signals():
            process = _start(exchange, request.config.world_size)
            try:
                _listen(process, exchange, on_progress or _ignore, (timeout_s, silence_limit_s(request)))
            finally:
                _end(process, exchange)


def _ignore(done: int, total: int, text: str) -> None:
    """Nobody listens."""


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Lets a polite kill of this process, or of its terminal, end the ranks too; Ctrl-C does so by itself."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _exit) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _start(exchange: Path, num_processes: int) -> subprocess.Popen[bytes]:
    torchrun = [sys.executable, "-P", "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    with (exchange / STDOUT).open("wb") as stdout, (exchange / STDERR).open("wb") as stderr:
        return subprocess.Popen(
            # Without a place for logs torchrun leaves a folder for them behind.
            [*torchrun, f"--log-dir={exchange}", f"--nproc-per-node={num_processes}", str(WORKER), str(exchange)],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=training_environment(num_processes),
            start_new_session=True,  # Ctrl-C in the terminal is ours alone to hand on
        )


def training_environment(num_processes: int) -> dict[str, str]:
    """This process's environment with the cores shared out among the ranks and the profiler's own log silenced."""
    environment = dict(os.environ)
    environment.setdefault("OMP_NUM_THREADS", str(max(1, count_cores() // num_processes)))
    environment.setdefault("KINETO_LOG_LEVEL", "99")
    return environment


def count_cores() -> int:
    """The cores this process may use, where the system tells, else all there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _listen(
    process: subprocess.Popen[bytes], exchange: Path, on_progress: OnProgress, limits_s: tuple[float, float]
) -> None:
    timeout_s, silence_s = limits_s
    progress = ProgressReader(exchange)
    started = last_heard = time.monotonic()
    allowed_silence_s = max(START_S, silence_s)
    while True:
        with suppress(subprocess.TimeoutExpired):
            process.wait(POLL_S)
        now = time.monotonic()
        for report in progress.read():
            on_progress(report.done, report.total, report.text)
            last_heard, allowed_silence_s = now, silence_s
        if process.returncode is not None:
            break
        if now - started > timeout_s:
            raise _with_output(RunError(f"The run was not done after {timeout_s:.0f} s and was stopped."), exchange)
        if now - last_heard > allowed_silence_s:
            sentence = f"The run made no progress for {allowed_silence_s:.0f} s and was stopped: a rank hangs."
            raise _with_output(RunError(sentence), exchange)
    if process.returncode != 0:
        raise explain_failure(exchange)


def explain_failure(exchange: Path) -> AdvisorError:
    """The error to raise for a run that ended badly: a killed rank, else a rank's own sentence, else what it raised."""
    stderr = (exchange / STDERR).read_text(errors="replace")
    failure = read_first_failure(exchange)
    killed = _find_killed_rank(stderr)
    if killed:
        return _with_output(RunError("Rank {} was killed by signal {} ({}).".format(*killed)), exchange)
    if failure and failure.kind in OWN_ERRORS:
        return OWN_ERRORS[failure.kind](failure.message)
    if failure:
        first_line = (failure.message.strip().splitlines() or ["no message"])[0]
        error = RunError(f"Rank {failure.rank} failed with {failure.kind}: {first_line}")
        error.add_note(failure.trace)
        return error
    return _with_output(RunError("The training processes could not be started or ended without a word."), exchange)


def _find_killed_rank(stderr: str) -> tuple[str, str, str] | None:
    """Rank, signal and its name in torchrun's summary; SIGTERM is how torchrun itself ends the others."""
    found = re.findall(r"rank\s*: (\d+) .*\n\s*exitcode\s*: -(\d+) \(pid: \d+\)\s+\((SIG\w+)\)", stderr)
    return next((entry for entry in found if entry[2] != "SIGTERM"), None)


def _with_output(error: RunError, exchange: Path, num_lines: int = 12) -> RunError:
    """Notes the last lines that the ranks themselves wrote, not torchrun's account of their end."""
    stderr = (exchange / STDERR).read_text(errors="replace")
    lines = [line for line in stderr.splitlines() if line.strip() and not FOREIGN_LINE.match(line)]
    end = next((i for i, line in enumerate(lines) if line == "Traceback (most recent call last):"), len(lines))
    if lines[:end]:
        error.add_note("\n".join(lines[:end][-num_lines:]))
    return error


def _end(process: subprocess.Popen[bytes], exchange: Path) -> None:
    """Ends torchrun, which ends its ranks; and the ranks themselves where it did not."""
    process.terminate()
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.returncode != 0:
        for pid in read_pids(exchange):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)  # every rank leads a group of its own
