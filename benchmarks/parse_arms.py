"""What is compared in `parse.py`: `python parse_arms.py ARM FILE…` prints what one run of it cost, as JSON.

The file is run by the interpreter of any environment, so each arm imports only what it measures.
"""

from __future__ import annotations

import json
import re
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

Arm = Callable[[list[str]], int]
"""Files to the number of rows or events that were made of them."""


def load_ours() -> Arm:
    """From files to finished event tables."""
    from advisor.readers.run import read_run

    return lambda paths: sum(len(trace.events) for trace in read_run(paths).traces)


def load_analysis() -> Arm:
    """From files to the report, read by two processes, without HTA's part in it."""
    from advisor.pipeline import analyze

    return lambda paths: len(analyze(paths, holistic=False, workers=2).steps)


def load_hta() -> Arm:
    """From files to the tables of HTA or traceinsight, which read several files in several processes."""
    import logging
    import warnings

    from hta.common.trace import Trace

    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")

    def read(paths: list[str]) -> int:
        traces = Trace(trace_files=dict(enumerate(paths)), trace_dir=str(Path(paths[0]).parent))
        traces.parse_traces()
        return sum(len(table) for table in traces.traces.values())

    return read


def load_json() -> Arm:
    """From files to Python objects, one file after the other; no table."""
    return lambda paths: sum(len(json.loads(Path(path).read_bytes())["traceEvents"]) for path in paths)


def load_orjson() -> Arm:
    """The same with orjson."""
    import orjson

    return lambda paths: sum(len(orjson.loads(Path(path).read_bytes())["traceEvents"]) for path in paths)


ARMS: dict[str, Callable[[], Arm]] = {
    "ddp-advisor": load_ours,
    "analyze": load_analysis,
    "hta": load_hta,
    "traceinsight": load_hta,
    "json": load_json,
    "orjson": load_orjson,
}


def main() -> None:
    """Runs one arm on some files; importing what it needs does not count."""
    arm, paths = ARMS[sys.argv[1]](), sys.argv[2:]
    began, began_cpu = time.perf_counter(), _count_cpu_s()
    num_rows = arm(paths)
    print(
        json.dumps(
            {
                "wall_s": time.perf_counter() - began,
                "cpu_s": _count_cpu_s() - began_cpu,
                "peak_bytes": max(_find_peak(), 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss),
                "num_rows": num_rows,
            }
        )
    )


_PROCESSES = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)


def _find_peak() -> int:
    """Bytes of this process at most; `ru_maxrss` would hold those of the one that started it, too."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"VmHWM:\s*(\d+) kB", status)[1])  # type: ignore[index]


def _count_cpu_s() -> float:
    usages = [resource.getrusage(who) for who in _PROCESSES]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


if __name__ == "__main__":
    main()
