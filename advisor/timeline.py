"""A trace as a timeline: steps, their phases, and what computed and communicated when.

A phase ends when its work is done on both sides: at the host's change of phase, or at the end of the last kernel
launched before it, whichever is later. So the phases of a step add up to the step by construction, on CPU (where the
host's time is the work's time) and on GPU (where the device may run far behind the host, or idle because of it).
Collectives launched during backward belong to what follows it: backward ends with its computation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pandas as pd

from advisor.intervals import EMPTY, Intervals, build_intervals, clip, total
from advisor.readers.names import (
    ANNOTATION,
    AUTOGRAD_NODE,
    COLLECTIVE_OP,
    COMMUNICATION_KERNEL,
    COPY_BACK,
    DATA_LOADING,
    DDP_FORWARD,
    GLOO_SPAN,
    KERNEL,
    MEMORY,
    OPERATOR,
    OPTIMIZER_STEP,
    OPTIMIZER_ZERO_GRAD,
    RUNTIME,
)
from advisor.schema import Phase, StepSource, marks
from advisor.step_windows import Window, find_steps
from advisor.tables import Trace, match_names

Times = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PhaseSpan:
    """A stretch of one step: on the host, and (`start_ns`, `end_ns`) on host and device both."""

    phase: Phase
    host_start_ns: int
    host_end_ns: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class StepTimeline:
    """One step on one rank; its spans follow each other without gap or overlap."""

    number: int
    host_start_ns: int
    host_end_ns: int
    spans: tuple[PhaseSpan, ...]
    host_bound_ns: int

    @property
    def start_ns(self) -> int:
        """When the step's own work began."""
        return self.spans[0].start_ns

    @property
    def end_ns(self) -> int:
        """When the last kernel launched inside the step ended, or the host left it if that is later."""
        return self.spans[-1].end_ns

    def sum_phase_ns(self, phase: Phase) -> int:
        """Length of all spans of one phase."""
        return sum(span.end_ns - span.start_ns for span in self.find_spans(phase))

    def find_spans(self, phase: Phase) -> list[PhaseSpan]:
        """The spans of one phase, in time order; there is one of each per micro-step."""
        return [span for span in self.spans if span.phase == phase]


@dataclass(frozen=True)
class RankTimeline:
    """What one rank's host and device did when."""

    trace: Trace
    steps: tuple[StepTimeline, ...]
    step_source: StepSource
    compute: Intervals
    communication: Intervals
    memory: Intervals
    """Copies and fills on the device; empty on CPU."""
    communication_rows: npt.NDArray[np.bool_]
    """Mask over `trace.events`."""
    device: pd.DataFrame
    """Kernels and copies with `launch_ns` (-1: launched outside the trace), in launch order; empty on CPU."""
    launches: Times
    """Every known `launch_ns`."""
    compute_done: Times
    """When the first n of them had ended, collectives excepted, for n = 0, 1, 2 and so on."""


def build_timeline(trace: Trace) -> RankTimeline:
    """Builds the timeline of one rank."""
    events = trace.events
    communication_rows = find_communication(events)
    device = _link_launches(events, communication_rows)
    launched = device[device["launch_ns"] >= 0]
    workers = events["thread"][communication_rows].unique()
    on_host = events["category"].isin(OPERATOR | ANNOTATION) & ~events["thread"].isin(workers)
    host = events.loc[on_host, ["name", "start_ns", "end_ns"]]
    if trace.device_type == "cuda":
        compute_rows = events["category"].isin(KERNEL).to_numpy() & ~communication_rows
    else:
        compute_rows = (events["category"].isin(OPERATOR) & ~events["thread"].isin(workers)).to_numpy()
    windows, step_source = find_steps(host)
    if step_source == "window":
        windows = [(0, int(events["start_ns"].min()), int(events["end_ns"].max()))]
    return RankTimeline(
        trace=trace,
        steps=_build_steps(
            (host, _list_awaited(events, communication_rows) if trace.device_type != "cuda" else EMPTY),
            device,
            [window for window in windows if _is_whole(window, trace.damaged_ns)],
        ),
        step_source=step_source,
        compute=_rows_to_intervals(events, compute_rows),
        communication=_rows_to_intervals(events, communication_rows),
        memory=_rows_to_intervals(events, events["category"].isin(MEMORY).to_numpy()),
        communication_rows=communication_rows,
        device=device,
        launches=launched["launch_ns"].to_numpy(),
        compute_done=_reach_compute(launched),
    )


def find_communication(events: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Rows that execute a collective: kernels that say so or are named so, and gloo spans on its worker threads."""
    kernels = events["category"].isin(KERNEL).to_numpy()
    tells = (events["collective"] != "").to_numpy()
    return (kernels & (tells | match_names(events, COMMUNICATION_KERNEL.search))) | (
        ~kernels & match_names(events, GLOO_SPAN.match)
    )


def _is_whole(window: Window, damaged_ns: Sequence[tuple[int, int]]) -> bool:
    """Whether a step takes time, and no event of it was lost while reading."""
    _, start, end = window
    return start < end and not any(start < lost_end and lost_start < end for lost_start, lost_end in damaged_ns)


def _rows_to_intervals(events: pd.DataFrame, rows: npt.NDArray[np.bool_]) -> Intervals:
    return build_intervals(events["start_ns"].to_numpy()[rows], events["end_ns"].to_numpy()[rows])


def _link_launches(events: pd.DataFrame, communication_rows: npt.NDArray[np.bool_]) -> pd.DataFrame:
    """Device rows with the host time of the runtime call that launched them, found through `correlation`."""
    on_device = events["category"].isin(KERNEL | MEMORY)
    device = events.loc[on_device, ["name", "start_ns", "end_ns", "stream", "correlation", "external_id"]].copy()
    device["communication"] = communication_rows[on_device.to_numpy()]
    device["row"] = np.flatnonzero(on_device.to_numpy())
    runtime = events[events["category"].isin(RUNTIME) & (events["correlation"] >= 0)]
    launch = runtime.drop_duplicates("correlation").set_index("correlation")
    device["launch_ns"] = launch["start_ns"].reindex(device["correlation"], fill_value=-1).to_numpy()
    device["launch_thread"] = launch["thread"].reindex(device["correlation"], fill_value=-1).to_numpy()
    return device.sort_values(["launch_ns", "start_ns"], kind="stable").reset_index(drop=True)


# ------------------------------------------------------------------------------------------------------- steps


def _build_steps(
    on_host: tuple[pd.DataFrame, Intervals], device: pd.DataFrame, windows: list[Window]
) -> tuple[StepTimeline, ...]:
    """The steps from host events, the collectives that the host itself waits for, and what ran on the device."""
    if not windows:
        return ()
    host, awaited = on_host
    launched = device[device["launch_ns"] >= 0]
    launches = launched["launch_ns"].to_numpy()
    everything = _reach(launched["end_ns"].to_numpy())
    compute = _reach_compute(launched)
    left_over = _find_left_over(device, windows[0][1])
    host_bound = _find_host_bound(device, windows[0][1], max(device["end_ns"].max(), windows[-1][2]))
    marked = _mark_phases(host)
    steps: list[StepTimeline] = []
    for number, host_start, host_end in windows:
        begin = max(host_start, left_over, int(everything[np.searchsorted(launches, host_start)]))
        spans: list[PhaseSpan] = []
        for phase, start, end in _find_phases((marked, awaited), host_start, host_end):
            before = int(np.searchsorted(launches, end))
            reached = compute if phase == "backward" else everything
            done = max(begin, end, int(reached[before]))
            spans.append(PhaseSpan(phase=phase, host_start_ns=start, host_end_ns=end, start_ns=begin, end_ns=done))
            begin = done
        bound = total(clip(host_bound, spans[0].start_ns, spans[-1].end_ns))
        steps.append(StepTimeline(number, host_start, host_end, tuple(spans), bound))
    return tuple(steps)


def _find_left_over(device: pd.DataFrame, host_start: int) -> int:
    """When the work launched before the recording had ended: what ran before the first kernel launched in a step."""
    own = device["start_ns"][device["launch_ns"] >= host_start]
    orphans = device[device["launch_ns"] < 0]
    ends = orphans["end_ns"][orphans["start_ns"] < own.min()] if len(own) else orphans["end_ns"]
    return int(ends.max()) if len(ends) else 0


def _reach(ends: Times) -> Times:
    """When the first n launches had all ended, for n = 0, 1, 2 and so on."""
    return np.concatenate([[0], np.maximum.accumulate(ends)]).astype(np.int64) if len(ends) else np.zeros(1, np.int64)


def _reach_compute(launched: pd.DataFrame) -> Times:
    return _reach(np.where(launched["communication"], 0, launched["end_ns"]))


def _find_host_bound(device: pd.DataFrame, start: int, end: int) -> Intervals:
    """When the device idled within [start, end) because the host had not yet launched what it ran next."""
    rows = device.sort_values("start_ns", kind="stable")
    busy = build_intervals(rows["start_ns"], rows["end_ns"])
    if len(busy) == 0:
        return busy
    launches = rows.drop_duplicates("start_ns").set_index("start_ns")["launch_ns"].reindex(busy[:, 0]).to_numpy()
    return build_intervals([start, *busy[:, 1]], [*np.minimum(launches, busy[:, 0]), end])


# ------------------------------------------------------------------------------------------------------ phases


def _mark_phases(host: pd.DataFrame) -> pd.DataFrame:
    """The times of host events, and which of them tell phases apart; names are asked once for all steps."""
    return pd.DataFrame(
        {
            "start_ns": host["start_ns"],
            "end_ns": host["end_ns"],
            "forward": match_names(host, DDP_FORWARD.__contains__),
            "node": match_names(host, lambda name: name.startswith(AUTOGRAD_NODE)),
            "optimizer": match_names(host, OPTIMIZER_STEP.match),
            "zero_grad": match_names(host, OPTIMIZER_ZERO_GRAD.match),
            "loading": match_names(host, DATA_LOADING.match),
            "finish": match_names(host, _is_gradient_finish),
            "launch": match_names(host, COLLECTIVE_OP.match),
        }
    )


def _list_awaited(events: pd.DataFrame, communication_rows: npt.NDArray[np.bool_]) -> Intervals:
    """The collectives in the order in which they started, without joining those that overlap."""
    spans = events.loc[communication_rows, ["start_ns", "end_ns"]].sort_values("start_ns").to_numpy()
    return np.asarray(spans, dtype=np.int64)


def _find_phases(on_host: tuple[pd.DataFrame, Intervals], start: int, end: int) -> list[tuple[Phase, int, int]]:
    """The host's phases of one step in order, without gap: (phase, start, end).

    Micro-steps are told apart by DDP's forward; everything before the first one is data (as is a data loader's
    `next` anywhere else), what follows a forward up to the first autograd node is forward (with the loss; until it
    returns where no backward follows, as in an evaluation), what follows backward up to the optimizer is other.
    """
    marked, awaited = on_host
    low, high = np.searchsorted(marked["start_ns"].to_numpy(), [start, end])
    window = marked.iloc[low:high]
    starts, ends, nodes, finish = (window[name].to_numpy() for name in ("start_ns", "end_ns", "node", "finish"))
    forwards = starts[window["forward"].to_numpy()]

    cuts: list[tuple[Phase, int, int]] = []
    limits = [*forwards.tolist(), end] if len(forwards) else [start, end]
    opened = limits[0]
    for begin, until in pairwise(limits):
        inside = nodes & (starts >= begin) & (starts < until)
        if not inside.any():
            continue  # a forward without a backward, as of the first of two modules, belongs to a later one that has it
        backward_start, gradients_end = int(starts[inside].min()), int(ends[inside].max())
        if len(forwards):
            cuts.append(("forward", opened, backward_start))
        cuts.append(("backward", backward_start, gradients_end))
        after = (starts >= gradients_end) & (starts < until)
        if not (after & finish).any():
            launches = int((window["launch"].to_numpy() & (starts >= backward_start) & (starts < gradients_end)).sum())
            after &= starts >= _find_reduced(awaited, (backward_start, until), launches)
        cuts.append(("gradient_finish", gradients_end, _find_finish_end(starts, ends, after, finish, until)))
        opened = until
    unanswered = window["forward"].to_numpy() & (starts >= opened)
    cuts += [("forward", s, e) for s, e in zip(starts[unanswered].tolist(), ends[unanswered].tolist(), strict=True)]
    whole: tuple[tuple[Phase, str], ...] = (("optimizer", "optimizer"), ("other", "zero_grad"), ("data", "loading"))
    for phase, mark in whole:
        rows = window[mark].to_numpy()
        cuts += [(phase, s, e) for s, e in zip(starts[rows].tolist(), ends[rows].tolist(), strict=True)]
    return _fill_gaps(sorted(cuts, key=lambda cut: cut[1]), start, end, forwards)


def _find_reduced(awaited: Intervals, within: tuple[int, int], launches: int) -> int:
    """When the collectives that a backward launched had ended; they run in the order of their launches."""
    first, beyond = np.searchsorted(awaited[:, 0], within)
    own = awaited[first : min(first + launches, beyond), 1]
    return int(own.max()) if len(own) else within[0]


def _is_gradient_finish(name: str) -> bool:
    return name == COPY_BACK or name.startswith((marks.BUCKET_WAIT, marks.COPY_BACK))


def _find_finish_end(
    starts: Times, ends: Times, after: npt.NDArray[np.bool_], finish: npt.NDArray[np.bool_], until: int
) -> int:
    """backward() returns after the last copy back or wait; where neither is written, before the next host event.

    With gradients as views of buckets on a CPU that is the next one after the buckets were reduced.
    """
    if (after & finish).any():
        return int(ends[after & finish].max())
    return int(starts[after].min()) if after.any() else until


def _fill_gaps(
    cuts: list[tuple[Phase, int, int]], start: int, end: int, forwards: Times
) -> list[tuple[Phase, int, int]]:
    """Names what lies between the known phases, so that they cover [start, end)."""
    first_forward = int(forwards[0]) if len(forwards) else start
    filled: list[tuple[Phase, int, int]] = []
    at = start
    for phase, begin, until in [*cuts, ("other", end, end)]:
        begin, until = min(max(begin, at), end), min(max(until, at), end)
        if begin > at:
            filled.append(("data" if begin <= first_forward else "other", at, begin))
        if until > begin or phase == "gradient_finish":  # which may have no host time and still take the device's
            filled.append((phase, begin, until))
        at = max(at, until)
    return filled
