"""HolisticTraceAnalysis (HTA) on our events: its breakdowns beside our numbers, and a check of our overlap against its.

The only file that imports hta, and only when it is asked. Each rank is handed over alone, as rows that pass by HTA's
parser (`hta_rows.py`), so nothing is rounded, no rank stands for another, and the last step counts. HTA looks at the
kernels that were launched up to the end of the last step; both sides of the check are about these.

**Source**: HolisticTraceAnalysis 0.5.0, `hta/analyzers/`. docs/holistic.md lists what goes wrong there and what is done
about it.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pandas as pd

from advisor.hta_rows import build_kernel_rows, build_step_rows, is_on_device
from advisor.intervals import Intervals, build_intervals, intersection, total
from advisor.readers.names import find_step_number
from advisor.schema import (
    CriticalPath,
    DeviceTime,
    Holistic,
    HolisticRank,
    KernelKind,
    KernelTime,
    KindTime,
    OverlapCheck,
    StreamIdle,
    StreamQueue,
)
from advisor.tables import Trace

UNDERSTOOD = "0.5.0"
INSTALL = "pip install 'ddp-advisor[hta]'"

MOST_RANKS = 8
MOST_KERNELS = 40_000
"""HTA goes through kernels one by one, so only this many of a run's first ranks are handed over: their last ones."""
NUM_KERNELS = 10
"""Kernels listed for a rank: the longest in sum."""
SHORT_GAP_NS = 30_000
"""A gap between kernels that means nothing: HTA documents 30 ns, but it counts in microseconds."""
TOLERANCE_FRACTION = 0.5e-4
"""HTA gives the overlap in percent with two decimals."""

KIND_OF: dict[str, KernelKind] = {"COMMUNICATION": "communication", "COMPUTATION": "computation", "MEMORY": "memory"}
SPELLING: dict[KernelKind, str] = {"communication": "ncclKernel", "computation": "kernel", "memory": "Memcpy"}
"""How a name must begin for HTA to know the kind; it knows no name that begins with RCCL or oneCCL."""
BOUND_BY = {
    "host_ns": "cpu_bound",
    "computation_ns": "gpu_compute_bound",
    "communication_ns": "gpu_communication_bound",
    "launch_ns": "gpu_kernel_launch_overhead",
    "gap_ns": "gpu_kernel_kernel_overhead",
}
"""What bounds a part of the critical path, in our words and in HTA's."""

FAILURES = (ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What HTA raises where events are not as it expects."""


def examine_rank(trace: Trace, most_kernels: int = MOST_KERNELS) -> Holistic:
    """Asks HTA about one rank; needs nothing of the others, so the ranks can be asked about in processes apart."""
    if trace.device_type != "cuda":
        return Holistic(messages=("There are no GPU events, so HolisticTraceAnalysis has nothing to add.",))
    started = time.perf_counter_ns()
    ranks: list[HolisticRank] = []
    messages: list[str] = []
    path = None
    with _silence():
        obstacle = find_obstacle()
        if obstacle:
            return Holistic(messages=(obstacle,))
        with _telling(f"HolisticTraceAnalysis finds no critical path on rank {trace.rank}", messages):
            path = _find_critical_path(trace, most_kernels)
        with _telling(f"HolisticTraceAnalysis does not answer for rank {trace.rank}", messages):
            ranks.append(_ask(_hand_over(trace, most_kernels), path))
    return Holistic(
        messages=tuple(messages),
        hta_version=UNDERSTOOD,
        ranks=tuple(ranks),
        elapsed_ns=time.perf_counter_ns() - started,
    )


def merge_answers(answers: Sequence[Holistic], num_ranks: int) -> Holistic:
    """Puts the answers about single ranks of a run with `num_ranks` together."""
    messages = [message for answer in answers for message in answer.messages]
    ranks = tuple(rank for answer in answers for rank in answer.ranks)
    if ranks and len(answers) < num_ranks:
        messages.append(f"To save time, only the first {len(answers)} of {num_ranks} ranks were handed over.")
    return Holistic(
        messages=tuple(dict.fromkeys(messages)),
        hta_version=UNDERSTOOD if ranks else None,
        ranks=ranks,
        elapsed_ns=sum(answer.elapsed_ns for answer in answers),
    )


def find_obstacle() -> str:
    """Why HTA cannot be asked, in one sentence; empty where it can."""
    try:
        import hta.analyzers.breakdown_analysis
        import hta.common.trace  # noqa: F401 - whether they load is the question

        installed = version("HolisticTraceAnalysis")
    except (ModuleNotFoundError, PackageNotFoundError) as error:
        if str(error.name).startswith(("hta", "HolisticTraceAnalysis")):
            return f"HolisticTraceAnalysis is not installed: {INSTALL}"
        return f"HolisticTraceAnalysis lacks {error.name}: {INSTALL}"
    if installed != UNDERSTOOD:
        return f"HolisticTraceAnalysis {installed} is installed, and only {UNDERSTOOD} is understood: {INSTALL}"
    if int(pd.__version__.partition(".")[0]) > 2:
        return f"HolisticTraceAnalysis {UNDERSTOOD} gives wrong answers with pandas {pd.__version__}: {INSTALL}"
    return ""


@contextmanager
def _silence() -> Iterator[None]:
    """Keeps HTA from logging, and pandas from warning of how HTA calls it."""
    logger, root, nowhere = logging.getLogger("hta"), logging.getLogger(), logging.NullHandler()
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    root.addHandler(nowhere)  # HTA also logs to the root, which without a handler would start to print
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning, module=r"hta\.")
            yield
    finally:
        root.removeHandler(nowhere)
        logger.setLevel(level)


class _UnansweredError(ValueError):
    """A question that HTA is not to be asked."""


@contextmanager
def _telling(what: str, messages: list[str]) -> Iterator[None]:
    """Turns what HTA raises into a message."""
    try:
        yield
    except _UnansweredError as error:
        messages.append(f"{what}: {error}.")
    except FAILURES as error:
        messages.append(f"{what}: {type(error).__name__}: {error}.")


# ------------------------------------------------------------------------------------------------- handing over


@dataclass(frozen=True)
class _Handed:
    """One rank in HTA's hands."""

    trace: Trace
    hta: Any
    """A `hta.common.trace.Trace` of this rank alone."""
    aliases: dict[str, str]
    """The names under which HTA knows the kind of a kernel that it would misread, with the true ones."""

    @property
    def kernels(self) -> pd.DataFrame:
        """The kernels and copies that HTA looks at, with our `kind` and its `hta_kind`."""
        rows: pd.DataFrame = self.hta.traces[self.trace.rank]
        return rows[rows["stream"] != -1]

    def correct_names(self) -> None:
        """Puts the aliases in the place of the true names."""
        symbols = self.hta.symbol_table
        for alias, name in self.aliases.items():
            symbols.sym_table[symbols.sym_index[name]] = alias


def _hand_over(trace: Trace, most_kernels: int) -> _Handed:
    from hta.utils.utils import get_kernel_type

    rows = build_kernel_rows(trace.events, most_kernels)
    rows["hta_kind"] = rows["name"].map({name: KIND_OF.get(get_kernel_type(name)) for name in rows["name"].unique()})
    wrong = rows[(rows["stream"] != -1) & (rows["kind"] != rows["hta_kind"])]
    misread: dict[str, KernelKind] = dict(zip(wrong["name"], wrong["kind"], strict=True))
    aliases = {f"{SPELLING[kind]} {number}": name for number, (name, kind) in enumerate(misread.items())}
    return _Handed(trace, _fill(trace.rank, rows), aliases)


def _fill(rank: int, rows: pd.DataFrame) -> Any:
    """A `hta.common.trace.Trace` that holds one rank."""
    from hta.common.trace import Trace as HtaTrace

    trace = HtaTrace(trace_files={}, trace_dir="")
    trace.symbol_table.add_symbols(sorted({*rows["name"], *rows["cat"]}))
    number_of = trace.symbol_table.get_sym_id_map()
    trace.traces[rank] = rows.assign(name=rows["name"].map(number_of), cat=rows["cat"].map(number_of))
    trace.meta_data[rank] = {}
    trace.align_and_filter_trace(include_last_profiler_step=True)
    trace.traces[rank] = trace.traces[rank].set_index("index", drop=False).rename_axis(None)
    trace.is_parsed = True
    return trace


# ------------------------------------------------------------------------------------------------------ answers


def _ask(handed: _Handed, path: CriticalPath | None) -> HolisticRank:
    if handed.kernels.empty:
        raise _UnansweredError("no launch of its kernels was recorded")
    overlap = _check_overlap(handed)
    handed.correct_names()
    kinds, kernels = _break_down_kernels(handed)
    return HolisticRank(
        rank=handed.trace.rank,
        num_kernels=len(handed.kernels),
        num_recorded_kernels=int(is_on_device(handed.trace.events).sum()),
        overlap=overlap,
        device_time=_break_down_time(handed),
        idle=_break_down_idle_time(handed),
        queues=_measure_queues(handed),
        kinds=kinds,
        kernels=kernels,
        critical_path=path,
    )


def _check_overlap(handed: _Handed) -> OverlapCheck | None:
    """Our overlap of the kernels that HTA looks at, beside what it makes of them under their own names."""
    from hta.analyzers.communication_analysis import CommunicationAnalysis

    kernels = handed.kernels
    communication = _span(kernels[kernels["kind"] == "communication"])
    computation = _span(kernels[kernels["kind"] == "computation"])
    if total(communication) == 0:
        return None
    hta_fraction = None
    if total(_span(kernels[kernels["hta_kind"] == "communication"])):
        overlap = CommunicationAnalysis.get_comm_comp_overlap(handed.hta, visualize=False)
        hta_fraction = float(overlap["comp_comm_overlap_pctg"].iloc[0]) / 100
    return OverlapCheck(
        ours_fraction=total(intersection(communication, computation)) / total(communication),
        hta_fraction=hta_fraction,
        tolerance_fraction=TOLERANCE_FRACTION,
        misread=tuple(handed.aliases.values()),
    )


def _span(kernels: pd.DataFrame) -> Intervals:
    return build_intervals(kernels["ts"], kernels["end"])


def _break_down_time(handed: _Handed) -> DeviceTime:
    from hta.analyzers.breakdown_analysis import BreakdownAnalysis

    row = BreakdownAnalysis.get_temporal_breakdown(handed.hta, visualize=False).iloc[0]
    return DeviceTime(
        span_ns=int(row["kernel_time(us)"]),
        idle_ns=int(row["idle_time(us)"]),
        computation_ns=int(row["compute_time(us)"]),
        other_ns=int(row["non_compute_time(us)"]),
    )


def _break_down_idle_time(handed: _Handed) -> tuple[StreamIdle, ...]:
    from hta.analyzers.breakdown_analysis import BreakdownAnalysis

    table, _ = BreakdownAnalysis.get_idle_time_breakdown(
        handed.hta, SHORT_GAP_NS, rank=handed.trace.rank, visualize=False
    )
    idle = table.pivot_table(index="stream", columns="idle_category", values="idle_time", aggfunc="sum")
    idle = idle.reindex(columns=["host_wait", "kernel_wait", "other"], fill_value=0).fillna(0).astype("int64")
    return tuple(
        StreamIdle(stream=stream, host_wait_ns=host, kernel_wait_ns=kernel, other_ns=other)
        for stream, host, kernel, other in idle.reset_index().to_numpy().tolist()
    )


def _measure_queues(handed: _Handed) -> tuple[StreamQueue, ...]:
    from hta.analyzers.trace_counters import TraceCounters

    table = TraceCounters.get_queue_length_summary(handed.hta, ranks=[handed.trace.rank])
    if table is None:
        return ()
    lengths = table["queue_length"].reset_index()
    return tuple(
        StreamQueue(stream=int(stream), mean_length=float(mean), median_length=float(median), max_length=int(longest))
        for stream, mean, median, longest in lengths[["stream", "mean", "50%", "max"]].to_numpy().tolist()
    )


def _break_down_kernels(handed: _Handed) -> tuple[tuple[KindTime, ...], tuple[KernelTime, ...]]:
    """Time by kind, and the longest kernels; HTA is asked for all of them, as it sums the means of those it merges."""
    from hta.analyzers.breakdown_analysis import BreakdownAnalysis

    by_kind, by_name = BreakdownAnalysis.get_gpu_kernel_breakdown(
        handed.hta, visualize=False, num_kernels=handed.kernels["name"].nunique(), include_memory_kernels=True
    )
    kinds = tuple(
        KindTime(kinds=tuple(KIND_OF[kind] for kind in together.split(" overlapping ")), total_ns=int(total_ns))
        for together, total_ns in zip(by_kind["kernel_type"], by_kind["sum"], strict=True)
    )
    longest = by_name.sort_values(["sum (us)", "name"], ascending=[False, True]).head(NUM_KERNELS)
    return kinds, tuple(
        KernelTime(
            name=handed.aliases.get(row["name"], row["name"]),
            kind=KIND_OF[row["kernel_type"]],
            num_calls=round(row["sum (us)"] / row["mean (us)"]) if row["sum (us)"] else 0,
            total_ns=int(row["sum (us)"]),
            mean_ns=float(row["mean (us)"]),
            min_ns=int(row["min (us)"]),
            max_ns=int(row["max (us)"]),
            stddev_ns=float(row["stddev"]),
        )
        for row in longest.to_dict("records")
    )


def _find_critical_path(trace: Trace, most_rows: int) -> CriticalPath | None:
    """The critical path of the step in the middle; None where synchronisation was not recorded."""
    chosen = build_step_rows(trace.events)
    if chosen is None:
        return None
    step, rows = chosen
    if len(rows) > most_rows:
        raise _UnansweredError(
            f"{step} has {len(rows)} events, more than the {most_rows} that can be looked at in time"
        )
    from hta.analyzers.critical_path_analysis import CriticalPathAnalysis

    graph, found = CriticalPathAnalysis.critical_path_analysis(_fill(trace.rank, rows), trace.rank, step, 0)
    if not found:
        raise _UnansweredError(f"the events of {step} contradict each other")
    spent = graph.get_critical_path_breakdown().groupby("bound_by")["duration"].sum()
    times = {ours: int(spent.get(theirs, 0)) for ours, theirs in BOUND_BY.items()}
    if sum(times.values()) > rows["end"].max() - rows["ts"].min():
        raise _UnansweredError(f"its path through {step} is longer than the step")
    number = find_step_number(step)
    assert number is not None, "it is named after a step"
    return CriticalPath(step=number, **times)
