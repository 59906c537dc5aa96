"""One rank's gradient exchange in each step: which all-reduces are buckets, when each was ready, what blocked.

*Exposed* is communication with no compute beside it. *Blocking* is what lengthens the step:

- CPU: the backward thread waits, after its last gradient, for a bucket that is not yet reduced; or inside a hook that
  multiplies matrices, for an all-reduce.
- GPU: from B, the later of (last backward kernel's end, host's launch of the first kernel after backward), to E, the
  earlier of (last bucket's end, that kernel's start); max(0, E - B).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from advisor.collectives import Collective, count_bytes
from advisor.compression import HookWork, find_hook_work
from advisor.intervals import Intervals, build_intervals, difference, measure_coverage, total, union
from advisor.readers.names import (
    ACCUMULATE_GRAD,
    ACCUMULATE_GRAD_OP,
    AUTOGRAD_NODE,
    COLLECTIVE_OP,
    COMPILED_NODE,
    COPY_BACK,
    OPERATOR,
    SYNC_BATCH_NORM_NODE,
    is_floating,
)
from advisor.readers.shapes import find_shape
from advisor.schema import CollectiveRole, GradientReady, marks
from advisor.tables import match_names
from advisor.timeline import PhaseSpan, RankTimeline, StepTimeline


@dataclass(frozen=True)
class Bucket:
    """One bucket's all-reduce on one rank, and when it could have run; on the rank's own clock."""

    collective: Collective
    ready_host_ns: int | None
    ready_device_ns: int | None
    exposed_ns: int


@dataclass(frozen=True)
class StepExchange:
    """The gradient exchange of one step on one rank; absolute times are on the rank's own clock."""

    step: StepTimeline
    buckets: tuple[Bucket, ...]
    """Of the backward that synchronised (the last one of the step), in launch order."""
    gradients: tuple[GradientReady, ...]
    """As observed, relative to the start of that backward; empty without AccumulateGrad nodes."""
    backward: PhaseSpan
    blocking: Intervals
    num_backwards: int
    num_syncs: int
    launch_spans: Intervals
    """Host time spent in launching collectives."""
    copy_back_ns: int
    """Host time spent in copying averages back into the gradients; on a GPU, from the first to the last of them."""
    num_copies_back: int
    host_tail_ns: int
    """GPU: from the last backward kernel's end to the host's launch of the first kernel after backward."""
    copies_alone_ns: int = 0
    """Host time inside the copies back, without what lies between them."""
    copy_in_ns: int = 0
    """Host time from each gradient's accumulation to its being ready: hooks, and the copy into its bucket."""
    shapes: tuple[tuple[int, ...], ...] = ()
    """Of the gradients; empty where one of them is unknown."""
    hook: HookWork | None = None
    """Of a hook that multiplies matrices."""

    @property
    def blocking_ns(self) -> int:
        """How much the exchange lengthened this step."""
        return total(self.blocking)


def classify_collective(collective: Collective) -> CollectiveRole:
    """What a collective is for, from its kind, dtype, size and where the host launched it.

    DDP reduces buckets in the gradients' dtype from the hooks of `AccumulateGrad`, or after the last one; what other
    nodes of backward reduce are no gradients. DDP's mark of unused parameters is an integer all-reduce; it broadcasts
    buffers before forward; `Join` sends single elements before forward and during backward.
    """
    if collective.node.startswith(SYNC_BATCH_NORM_NODE):
        return "sync_batch_norm"
    if collective.kind == "broadcast" and collective.phase in ("forward", "data", "other"):
        return "buffer"
    if collective.kind == "all_reduce" and collective.phase == "forward" and collective.num_elements == 1:
        return "join"
    if collective.kind != "all_reduce" or collective.phase not in ("backward", "gradient_finish"):
        return "other"
    if collective.node not in ("", ACCUMULATE_GRAD) and not COMPILED_NODE.match(collective.node):
        return "other"
    if collective.dtype and not is_floating(collective.dtype):
        return "unused_parameter_mark"
    return "join" if collective.num_elements == 1 else "bucket"


def find_exchanges(timeline: RankTimeline, collectives: Sequence[Collective]) -> tuple[StepExchange, ...]:
    """The gradient exchange of every step that has one."""
    candidates = [c for c in collectives if classify_collective(c) == "bucket"]
    groups = Counter(c.process_group for c in candidates)
    # The process group that carries the gradients: the one with most bucket-like collectives.
    group = max(groups, key=lambda name: (groups[name], name), default=None)
    exchanges = []
    for step in timeline.steps:
        own = [c for c in candidates if c.step == step.number and c.process_group == group]
        if own and step.find_spans("backward"):
            exchanges.append(_find_exchange(timeline, step, own))
    return tuple(exchanges)


def _find_exchange(timeline: RankTimeline, step: StepTimeline, collectives: list[Collective]) -> StepExchange:
    backwards = step.find_spans("backward")
    launches = [c.launch_ns if c.launch_ns >= 0 else c.start_ns for c in collectives]
    places = np.searchsorted([span.host_start_ns for span in backwards], launches, side="right") - 1
    last = [c for c, place in zip(collectives, places, strict=True) if place == places.max()]
    backward = backwards[places.max()]
    finish = next((s for s in step.find_spans("gradient_finish") if s.host_start_ns == backward.host_end_ns), None)
    host_tail = 0
    if timeline.trace.device_type == "cuda":
        blocking, host_tail = _find_device_blocking(timeline, backward, finish, last)
    else:
        blocking = _find_host_blocking(timeline, backward, finish, last)
    found = _find_gradients(timeline, backward)
    if found.hook is not None:
        blocking = union(blocking, found.hook.waiting)
    copies_back = _find_copies_back(timeline, finish)
    return StepExchange(
        step=step,
        buckets=tuple(_describe_bucket(timeline, collective, found.ready_host) for collective in last),
        gradients=found.gradients,
        shapes=found.shapes,
        hook=found.hook,
        backward=backward,
        blocking=blocking,
        num_backwards=len(backwards),
        num_syncs=len(set(places)),
        launch_spans=_find_launch_spans(timeline, backward),
        copy_back_ns=_measure_copying(copies_back, on_gpu=timeline.trace.device_type == "cuda"),
        num_copies_back=len(copies_back),
        host_tail_ns=host_tail,
        copies_alone_ns=total(build_intervals(copies_back["start_ns"], copies_back["end_ns"])),
        copy_in_ns=found.copy_in_ns,
    )


def _describe_bucket(timeline: RankTimeline, collective: Collective, ready_host: npt.NDArray[np.int64]) -> Bucket:
    host = device = None
    if collective.launch_ns >= 0:
        before = int(np.searchsorted(ready_host, collective.launch_ns, side="right"))
        host = device = int(ready_host[before - 1]) if before else None
        if timeline.trace.device_type == "cuda":
            device = find_device_done(timeline, collective.launch_ns)
    own = build_intervals([collective.start_ns], [collective.end_ns])
    return Bucket(collective, host, device, exposed_ns=total(difference(own, timeline.compute)))


# --------------------------------------------------------------------------------------------------- gradients


class _Gradients(NamedTuple):
    """The gradients of one backward in ready order, when their nodes were ready on the host, the time of copying in."""

    hook: HookWork | None
    gradients: tuple[GradientReady, ...]
    shapes: tuple[tuple[int, ...], ...]
    ready_host: npt.NDArray[np.int64]
    copy_in_ns: int


def _find_gradients(timeline: RankTimeline, backward: PhaseSpan) -> _Gradients:
    """Finds the gradients of one backward.

    A gradient is ready when its AccumulateGrad node ended, hooks and copy into the bucket included, but not the launch
    of the collective that it may have completed.
    """
    window = _select(timeline.trace.events, backward.host_start_ns, backward.host_end_ns)
    nodes = window[match_names(window, lambda name: name == ACCUMULATE_GRAD)]
    operators = window[match_names(window, lambda name: name == ACCUMULATE_GRAD_OP)]
    launches = np.sort(window["start_ns"].to_numpy()[match_names(window, COLLECTIVE_OP.match)])
    node_starts, node_ends = nodes["start_ns"].to_numpy(), nodes["end_ns"].to_numpy()
    first_launch = np.searchsorted(launches, node_starts)
    padded = np.append(launches, np.iinfo(np.int64).max)
    ready_host = np.minimum(padded[first_launch], node_ends)
    hook = find_hook_work(timeline, window)
    if hook is not None:
        ready_host[np.searchsorted(node_ends, hook.spans[:, 1])] = hook.spans[:, 0]
    inside = np.searchsorted(operators["start_ns"].to_numpy(), node_starts)
    if len(operators) != len(nodes) or not np.array_equal(inside, np.arange(len(nodes))):
        return _Gradients(hook, (), (), ready_host, 0)
    on_gpu = timeline.trace.device_type == "cuda"
    zero_host, zero = backward.host_start_ns, backward.start_ns
    ready_device = [find_device_done(timeline, int(ready)) if on_gpu else int(ready) for ready in ready_host]
    computed = measure_coverage(timeline.compute)
    busy = computed(ready_device) - computed([zero])
    gradients = tuple(
        GradientReady(
            index=index,
            num_bytes=count_bytes(int(elements), str(dtype)),
            dtype=str(dtype),
            ready_host_ns=int(ready_host[index]) - zero_host,
            ready_device_ns=ready_device[index] - zero,
            idle_ns=max(0, ready_device[index] - zero - round(float(busy[index]))) if on_gpu else 0,
        )
        for index, (elements, dtype) in enumerate(zip(operators["num_elements"], operators["dtype"], strict=True))
    )
    shapes = [find_shape(str(dims)) for dims in operators["input_dims"]]
    known = tuple(shape for shape in shapes if shape is not None)
    copy_in_ns = int((ready_host - operators["end_ns"].to_numpy()).clip(0).sum())
    return _Gradients(hook, gradients, known if len(known) == len(shapes) else (), ready_host, copy_in_ns)


def find_device_done(timeline: RankTimeline, host_ns: int) -> int:
    """When the last compute kernel that the host had launched by `host_ns` ended; at least `host_ns` itself."""
    return max(host_ns, int(timeline.compute_done[np.searchsorted(timeline.launches, host_ns)]))


def _find_launch_spans(timeline: RankTimeline, backward: PhaseSpan) -> Intervals:
    window = _select(timeline.trace.events, backward.host_start_ns, backward.host_end_ns)
    rows = window[match_names(window, COLLECTIVE_OP.match)]
    return build_intervals(rows["start_ns"], rows["end_ns"])


def _find_copies_back(timeline: RankTimeline, finish: PhaseSpan | None) -> pd.DataFrame:
    events = timeline.trace.events
    window = _select(events, finish.host_start_ns, finish.host_end_ns) if finish else events[:0]
    return window[match_names(window, lambda name: name == COPY_BACK or name.startswith(marks.COPY_BACK))]


def _measure_copying(copies: pd.DataFrame, *, on_gpu: bool) -> int:
    """On CPU the host waits for buckets between the copies; on a GPU it only launches them."""
    spans = build_intervals(copies["start_ns"], copies["end_ns"])
    return int(spans[-1, 1] - spans[0, 0]) if on_gpu and len(spans) else total(spans)


def _select(events: pd.DataFrame, start: int, end: int) -> pd.DataFrame:
    low, high = np.searchsorted(events["start_ns"].to_numpy(), [start, end])
    return events.iloc[low:high]


# ---------------------------------------------------------------------------------------------------- blocking


def _find_host_blocking(
    timeline: RankTimeline, backward: PhaseSpan, finish: PhaseSpan | None, buckets: list[Collective]
) -> Intervals:
    """The gaps of the backward thread between its last gradient and the end of the last bucket."""
    if finish is None:
        return build_intervals([], [])
    events = timeline.trace.events
    until = min(finish.host_end_ns, max(bucket.end_ns for bucket in buckets))
    during = _select(events, backward.host_start_ns, backward.host_end_ns)
    nodes = during["thread"].to_numpy()[match_names(during, lambda name: name.startswith(AUTOGRAD_NODE))]
    window = _select(events, backward.host_start_ns, until)
    own = (window["thread"].isin(np.unique(nodes)) & window["category"].isin(OPERATOR)).to_numpy()
    busy = build_intervals(window["start_ns"].to_numpy()[own], window["end_ns"].to_numpy()[own])
    return difference(build_intervals([finish.host_start_ns], [until]), busy)


def _find_device_blocking(
    timeline: RankTimeline, backward: PhaseSpan, finish: PhaseSpan | None, buckets: list[Collective]
) -> tuple[Intervals, int]:
    if finish is None:
        return build_intervals([], []), 0
    device = timeline.device
    following = device[(device["launch_ns"] >= finish.host_end_ns) & ~device["communication"]]
    begin, until = backward.end_ns, min(finish.end_ns, max(bucket.end_ns for bucket in buckets))
    if len(following):
        begin = max(begin, int(following["launch_ns"].iloc[0]))
        until = min(until, int(following["start_ns"].iloc[0]))
    return build_intervals([begin], [until]), begin - backward.end_ns
