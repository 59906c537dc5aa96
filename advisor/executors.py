"""Where ranks are read: in this process, in processes beside it or by a Dask cluster, all the same to the reader.

A worker process lives no longer than this one needs it: it holds one end of a pipe and ends when the other one is
closed, be it by us, by Ctrl-C or because this process was killed. It does not hear Ctrl-C itself.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from advisor.errors import UsageError
from advisor.readers.archives import Member
from advisor.readers.display import show_name
from advisor.readers.failures import explain
from advisor.readers.locations import Location
from advisor.readers.run_files import RunFiles

if TYPE_CHECKING:
    from distributed import Client

Workers: TypeAlias = int | str | None
"""How many processes, None for as many as pay; or the address of a Dask scheduler."""

CONNECT_S = 10
"""How long a Dask scheduler may take to answer, and its first worker to come."""
PACKAGE = "ddp-advisor"

RANK_S = 0.05
TEXT_BYTES_PER_S = 40e6
"""What a rank takes one core, by small ones and by one byte of text, HTA included."""
TYPICAL_EXPANSION = 15
"""Bytes of text for one byte that is compressed."""
PAYS_FROM_S = 4.0
"""From so much work on, processes save more than the two seconds of a core that each takes to start and to load HTA."""


@contextmanager
def open_executor(workers: Workers, run: RunFiles) -> Iterator[Executor | None]:
    """Opens what reads the ranks of a run while the block runs; None where that is this process itself.

    Raises:
        UsageError: The cluster does not answer or its extra is not installed; or, in the block, a worker was killed.
    """
    if isinstance(workers, str):
        with _join_cluster(workers) as executor:
            yield executor
        return
    num_processes = min(choose_workers(run) if workers is None else workers, len(run.ranks))
    if num_processes <= 1:
        yield None
        return
    with _start_processes(num_processes) as executor:
        yield executor


def choose_workers(run: RunFiles) -> int:
    """A process for each core, or 1 where starting them costs more than they save.

    How much there is to read, the files on this machine tell; of a URL nothing is known.
    """
    expected_s = len(run.ranks) * RANK_S
    for file in {_find_file(source.location) for rank in run.ranks for source in rank.sources}:
        with suppress(OSError):
            expansion = 1 if file.name.endswith(".json") else TYPICAL_EXPANSION
            expected_s += Path(file.name).stat().st_size * expansion / TEXT_BYTES_PER_S
    return _count_cores() if expected_s >= PAYS_FROM_S else 1


def _find_file(location: Location) -> Location:
    return _find_file(location.archive) if isinstance(location, Member) else location


def _count_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# ---------------------------------------------------------------------------------------------------- processes


@contextmanager
def _start_processes(num_processes: int) -> Iterator[Executor]:
    context = multiprocessing.get_context("spawn")
    held_by_workers, lifeline = context.Pipe(duplex=False)
    executor = ProcessPoolExecutor(num_processes, context, initializer=_follow, initargs=(held_by_workers,))
    try:
        with _deaf_to_interrupts():  # which a new process inherits
            for _ in range(num_processes):
                executor.submit(_load_analysis)
        yield executor
        executor.shutdown()
    except BrokenProcessPool as error:
        raise UsageError(
            "A worker process was killed, as the system does when memory runs out: take fewer with --workers, "
            "down to 1."
        ) from error
    finally:
        lifeline.close()
        executor.shutdown(cancel_futures=True)
        held_by_workers.close()


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Lets Ctrl-C wait until the block is left."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _follow(lifeline: Connection) -> None:
    """Makes a worker end with the process that started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_after, args=(lifeline,), daemon=True).start()


def _end_after(lifeline: Connection) -> None:
    with suppress(EOFError, OSError):
        lifeline.recv_bytes()
    os._exit(1)


def _load_analysis() -> None:
    """What takes a worker longest before its first rank."""
    import advisor.observation  # noqa: F401 - for its imports


# ------------------------------------------------------------------------------------------------------ cluster


@contextmanager
def _join_cluster(address: str) -> Iterator[Executor]:
    try:
        from distributed import Client, KilledWorker
    except ModuleNotFoundError as error:
        raise UsageError(
            f"--scheduler needs {error.name}, which is not installed: pip install 'ddp-advisor[cluster]'."
        ) from error
    cluster = f"the Dask scheduler at {show_name(address)}"
    try:
        with ThreadPoolExecutor(1) as away_from_any_event_loop:
            away_from_any_event_loop.submit(asyncio.run, _knock(address)).result()
    except (OSError, ValueError) as error:
        raise UsageError(f"Cannot reach {cluster} ({explain(error)}): write it as tcp://host:8786.") from error
    with Client(address, set_as_default=False) as client:
        _require_workers(client, cluster)
        try:
            yield client.get_executor(pure=False)
        except KilledWorker as error:
            raise UsageError(
                f"Workers of {cluster} were killed, as happens when memory runs out: give each more memory or fewer "
                "threads."
            ) from error
        except CancelledError as error:
            raise UsageError(f"Lost {cluster} before all ranks were read: look at its log.") from error


async def _knock(address: str) -> None:
    """Connects once, since a Client that finds nobody takes half a minute to go away."""
    from distributed import Security
    from distributed.comm.core import connect

    comm = await connect(address, timeout=CONNECT_S, **Security().get_connection_args("client"))
    await comm.close()


def _require_workers(client: Client, cluster: str) -> None:
    """Waits for a worker. Functions travel by name, so everybody must know the same ones."""
    own = version(PACKAGE)
    try:
        client.wait_for_workers(1, timeout=CONNECT_S)
        there = {client.run_on_scheduler(version, PACKAGE), *client.run(version, PACKAGE).values()}
    except TimeoutError as error:
        raise UsageError(f"No worker came to {cluster} within {CONNECT_S} s: start some.") from error
    except PackageNotFoundError:
        there = set()
    if there != {own}:
        raise UsageError(f"{PACKAGE} {own} is not on every machine of {cluster}: install it there as it is here.")
