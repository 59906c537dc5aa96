"""The script that torchrun starts on every rank: it does what the request in its exchange folder says.

It is started by file path, so Python would put this very folder first on the search path and our modules would answer
to names like `train`. Instead the working directory goes there, where a person's own factories are, and the packages
`advisor` and `workloads` are bound to the ones beside this file, whatever else has these names.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType

FOLDER = Path(__file__).resolve().parent
TRACE_DEPTH = 4
"""Innermost frames that a person sees of a failed rank."""


def bind_package(folder: Path) -> None:
    """Imports the package in `folder` under the folder's name."""
    spec = importlib.util.spec_from_file_location(
        folder.name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[folder.name] = module
    spec.loader.exec_module(module)


def main(exchange: Path) -> None:
    """Runs the task of `exchange`'s request on this rank and leaves the reason there if it fails."""
    import msgspec

    from workloads.exchange import REQUEST, Failure, Reporter, leave_failure, leave_pid
    from workloads.requests import Request

    rank = int(os.environ["RANK"])
    leave_pid(exchange, rank, os.getpid())

    def leave_reason(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        lines = "".join(traceback.format_exception(kind, error, trace, limit=-TRACE_DEPTH)).strip()
        failure = Failure(rank=rank, time_ns=time.time_ns(), kind=kind.__name__, message=str(error), trace=lines)
        leave_failure(exchange, failure)
        sys.__excepthook__(kind, error, trace)

    sys.excepthook = leave_reason
    request: Request = msgspec.json.decode((exchange / REQUEST).read_bytes(), type=Request)

    from workloads.tasks import run_task

    run_task(request, Reporter(exchange, rank))


if __name__ == "__main__":
    sys.path[0] = str(Path.cwd())
    for package in (FOLDER.parent / "advisor", FOLDER):
        bind_package(package)
    main(Path(sys.argv[1]))
