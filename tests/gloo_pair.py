"""Two long-lived gloo processes that run one test case after another, since starting torch per test is too dear.

A case is a module-level function that both ranks execute with the default process group up. A case that raises, hangs
or kills a process costs the pair: it is ended, and the next case starts a new one.
"""

from __future__ import annotations

import datetime
import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

WORLD_SIZE = 2
START_S = 90.0
GRACE_S = 2.0
"""How long the other rank may still take once one has failed."""
GROUP_TIMEOUT = datetime.timedelta(seconds=45)


class CaseError(AssertionError):
    """A case failed on a rank; the message holds the rank and its traceback."""


class GlooPair:
    """The pair, started when first needed."""

    def __init__(self) -> None:
        self._folder = Path()
        self._processes: list[SpawnProcess] = []
        self._connections: list[Connection] = []

    def run(self, function: Callable[..., Any], *args: Any, timeout_s: float = 60, **kwargs: Any) -> list[Any]:
        """Runs `function(*args, **kwargs)` on both ranks.

        Returns:
            What rank 0 and rank 1 returned.

        Raises:
            CaseError: A rank raised, died or was not done after `timeout_s`.
        """
        if not self._processes:
            self._start()
            self._collect(START_S)
        for connection in self._connections:
            connection.send((function, args, kwargs))
        return self._collect(timeout_s)

    def stop(self) -> None:
        """Ends the pair; the next case starts a new one. For cases that leave the process group unusable."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
            process.close()
        for connection in self._connections:
            connection.close()
        if self._processes:
            shutil.rmtree(self._folder)
        self._processes, self._connections = [], []

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._folder = Path(tempfile.mkdtemp(prefix="gloo-pair-"))
        for rank in range(WORLD_SIZE):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, self._folder, theirs), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._connections.append(ours)

    def _collect(self, timeout_s: float) -> list[Any]:
        results: dict[Connection, Any] = {}
        failures: dict[Connection, str] = {}
        deadline = time.monotonic() + timeout_s
        while pending := [c for c in self._connections if c not in results and c not in failures]:
            for connection in wait(pending, max(0.0, deadline - time.monotonic())):
                assert isinstance(connection, Connection)
                try:
                    results[connection] = connection.recv()
                except EOFError:
                    failures[connection] = "ended"
                    deadline = min(deadline, time.monotonic() + GRACE_S)
            if time.monotonic() >= deadline:
                failures.update((c, "was not done in time") for c in pending if c not in results and c not in failures)
        if failures:
            message = "\n".join(
                f"rank {rank} {failures[connection]}\n{(self._folder / f'rank{rank}.log').read_text()[-4000:]}"
                for rank, connection in enumerate(self._connections)
                if connection in failures
            )
            self.stop()
            raise CaseError(message)
        return [results[connection] for connection in self._connections]


def _serve(rank: int, folder: Path, connection: Connection) -> None:
    # An exception of a case ends the process; its traceback goes where the parent looks for it.
    with (folder / f"rank{rank}.log").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.environ.update(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", KINETO_LOG_LEVEL="99")
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), WORLD_SIZE)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD_SIZE, timeout=GROUP_TIMEOUT)
    connection.send("ready")
    while True:
        try:
            function, args, kwargs = connection.recv()
        except EOFError:
            return
        connection.send(function(*args, **kwargs))
