"""The section "Beside HolisticTraceAnalysis": its sentences and tables, for every renderer alike."""

from __future__ import annotations

from dataclasses import dataclass

from advisor.schema import CriticalPath, Holistic, HolisticRank, OverlapCheck
from reports.text import UNKNOWN, format_fraction, format_ms, format_ns, visible

TITLE = "Beside HolisticTraceAnalysis"
LONGEST_NAME = 48
MOST_NAMED = 3


@dataclass(frozen=True)
class HolisticTable:
    """Rows of text under a header; the first `num_words` columns are words, the others numbers."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    num_words: int = 1


def say_agreement(holistic: Holistic) -> str:
    """On how many ranks both see the same overlap; empty where they do on none."""
    checks = [rank.overlap for rank in holistic.ranks if rank.overlap is not None]
    agreeing = sum(check.agrees for check in checks)
    if agreeing == 0:
        return ""
    where = "" if len(checks) == 1 else f" on {agreeing} of {len(checks)} ranks"
    return f"Both see the same overlap of communication with computation{where}, within HTA's rounding."


def say_disagreements(holistic: Holistic) -> tuple[str, ...]:
    """One warning for each rank on which the two see a different overlap."""
    return tuple(_say_disagreement(rank.rank, rank.overlap) for rank in holistic.disagreements if rank.overlap)


def say_scope(holistic: Holistic) -> str:
    """What HTA looked at, and what asking it took."""
    return (
        f"HolisticTraceAnalysis {holistic.hta_version} on the kernels launched in the recording, up to the end of its "
        f"last step; asking it took {format_ns(holistic.elapsed_ns)} of the analysis."
    )


def summarize(holistic: Holistic) -> HolisticTable:
    """One line a rank: both overlaps, and where the device's time goes."""
    return HolisticTable(
        title="Overlap and device time",
        header=("rank", "kernels", "overlap", "HTA's", "span", "idle", "computation", "other"),
        rows=tuple(_summarize_rank(rank) for rank in holistic.ranks),
    )


def tabulate(holistic: Holistic) -> tuple[HolisticTable, ...]:
    """HTA's other tables, those there are rows for."""
    streams = [
        (
            f"{rank.rank}",
            f"{idle.stream}",
            *(format_ms(time) for time in (idle.host_wait_ns, idle.kernel_wait_ns, idle.other_ns)),
            *_show_queue(rank, idle.stream),
        )
        for rank in holistic.ranks
        for idle in rank.idle
    ]
    kinds = [
        (f"{rank.rank}", " + ".join(kind.kinds), format_ms(kind.total_ns), _share(kind.total_ns, rank))
        for rank in holistic.ranks
        for kind in rank.kinds
    ]
    kernels = [
        (
            f"{rank.rank}",
            shorten(kernel.name),
            kernel.kind,
            f"{kernel.num_calls}",
            *(format_ns(time) for time in (kernel.total_ns, kernel.mean_ns, kernel.min_ns, kernel.max_ns)),
        )
        for rank in holistic.ranks
        for kernel in rank.kernels
    ]
    paths = [(f"{rank.rank}", *_show_path(path)) for rank in holistic.ranks if (path := rank.critical_path)]
    tables = (
        HolisticTable(
            "Idle time and queue of each stream",
            ("rank", "stream", "waits for host", "short gaps", "other idle", "mean queue", "longest"),
            tuple(streams),
        ),
        HolisticTable("Running at the same time", ("rank", "kinds", "ms", "of the span"), tuple(kinds), 2),
        HolisticTable(
            "Longest kernels",
            ("rank", "kernel", "kind", "calls", "total", "mean", "shortest", "longest"),
            tuple(kernels),
            3,
        ),
        HolisticTable(
            "Critical path of one step",
            ("rank", "step", "host", "computation", "communication", "launching", "gaps"),
            tuple(paths),
        ),
    )
    return tuple(table for table in tables if table.rows)


def shorten(name: str) -> str:
    """A kernel's name, cut where nobody reads on."""
    shown = visible(name)
    return shown if len(shown) <= LONGEST_NAME else shown[: LONGEST_NAME - 1] + "…"


def _say_disagreement(rank: int, check: OverlapCheck) -> str:
    ours = f"Rank {rank}: {_percent(check.ours_fraction)} of the communication has computation beside it"
    named = ", ".join(shorten(name) for name in check.misread[:MOST_NAMED])
    more = len(check.misread) - MOST_NAMED
    names = f"{named} and {more} more" if more > 0 else named
    theirs = (
        "HolisticTraceAnalysis sees no communication"
        if check.hta_fraction is None
        else f"HolisticTraceAnalysis says {_percent(check.hta_fraction)}"
    )
    reason = f"It takes {names} for something else." if names else "Please report this trace."
    return f"{ours}, but {theirs}. {reason}"


def _summarize_rank(rank: HolisticRank) -> tuple[str, ...]:
    whole = rank.num_kernels == rank.num_recorded_kernels
    ours = theirs = UNKNOWN
    if rank.overlap is not None:
        ours = _percent(rank.overlap.ours_fraction)
        theirs = UNKNOWN if rank.overlap.hta_fraction is None else _percent(rank.overlap.hta_fraction)
    time = rank.device_time
    return (
        f"{rank.rank}",
        f"{rank.num_kernels}" if whole else f"{rank.num_kernels} of {rank.num_recorded_kernels}",
        ours,
        theirs,
        format_ns(time.span_ns),
        _share(time.idle_ns, rank),
        _share(time.computation_ns, rank),
        _share(time.other_ns, rank),
    )


def _show_queue(rank: HolisticRank, stream: int) -> tuple[str, str]:
    """Where a kernel starts in the microsecond of its launch, HTA may count it as gone before it came."""
    queue = next((queue for queue in rank.queues if queue.stream == stream), None)
    return (UNKNOWN, UNKNOWN) if queue is None else (f"{max(0.0, queue.mean_length):.1f}", f"{queue.max_length}")


def _show_path(path: CriticalPath) -> tuple[str, ...]:
    times = (path.host_ns, path.computation_ns, path.communication_ns, path.launch_ns, path.gap_ns)
    return (f"{path.step}", *map(format_ms, times))


def _share(time_ns: int, rank: HolisticRank) -> str:
    return format_fraction(time_ns / rank.device_time.span_ns if rank.device_time.span_ns else None)


def _percent(fraction: float) -> str:
    """With two decimals, as HTA has it."""
    return f"{fraction * 100:.2f} %"
