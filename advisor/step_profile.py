"""The computation of a typical step, freed from the communication that was observed beside it.

The observed backward is stretched by communication and by launching it. With s the slow-down of computation while
communication runs, a span of observed length d, of which l went into launching and o ran beside communication, is

    clean = d - l - (o - o ∩ l) · (1 - 1 / s)

A hook that multiplies matrices counts as launching, since replay adds what it computes. Times are made clean per step
and rank. A collective starts when its last rank arrives, so for every gradient the last rank is taken per step, and the
median over the steps after that: medians taken first would hide that ranks take turns in being late, and medians of
gaps would drift.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np
import numpy.typing as npt

from advisor.exchange import StepExchange
from advisor.intervals import difference, measure_coverage, total, union
from advisor.observation import RankObservation
from advisor.powersgd import split_bucket
from advisor.schedule import StepSchedule
from advisor.schema import POWERSGD, GradientReady, RankProfile, StepProfile
from advisor.timeline import StepTimeline

SLOWEST = -1
"""The rank number of the merged profile."""
ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float64": 8}
"""Bytes of a gradient element; 4 for every dtype that is not listed."""
CASTING_HOOKS = {"float16": "fp16", "bfloat16": "bf16"}
"""By the dtype that all gradients are cast to."""
MOST_RANK = 128
"""Of PowerSGD: a larger one is not looked for."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class _CleanStep:
    """One step on one rank; ns. Times before backward count from the ranks' common start of the step."""

    rank: int
    step: StepTimeline
    schedule: StepSchedule
    before: float
    ready_host: Floats
    ready_device: Floats
    idle: Floats
    backward: float
    after: float
    """The step without what comes before backward, the observed backward and its finish."""


def build_step_profile(
    observations: Sequence[RankObservation], schedules: Sequence[StepSchedule], compute_slowdown: float
) -> StepProfile | None:
    """Builds the profile of a run.

    Args:
        observations: All ranks.
        schedules: Their gradient exchanges.
        compute_slowdown: Computation's time beside communication over its time alone, at least 1.

    Returns:
        The profile; None where there is no exchange, or its buckets' bytes are unknown.
    """
    if not schedules or any(bucket.num_bytes < 0 for schedule in schedules for bucket in schedule.buckets):
        return None
    sizes_known = all(knows_gradients(schedule.exchange) for schedule in schedules)
    observation_of = {observation.rank: observation for observation in observations}
    units_of = {(s.rank, s.step): s.exchange.gradients if sizes_known else _buckets_as_gradients(s) for s in schedules}
    count = Counter(len(units) for units in units_of.values()).most_common(1)[0][0]
    starts = _find_common_starts(schedules)
    clean = [
        _clean_step(observation_of[s.rank], s, units_of[s.rank, s.step], (compute_slowdown, starts[s.step]))
        for s in schedules
        if len(units_of[s.rank, s.step]) == count
    ]
    units = next(units for units in units_of.values() if len(units) == count)
    shapes = next((s.exchange.shapes for s in schedules if len(s.exchange.shapes) == count), ()) if sizes_known else ()
    ranks = sorted({c.rank for c in clean})
    num_micro_steps = round(float(np.median([schedule.exchange.num_backwards for schedule in schedules])))
    return StepProfile(
        device_type=observations[0].device_type,
        num_steps=len({c.step.number for c in clean}),
        num_micro_steps=num_micro_steps,
        sizes_known=sizes_known,
        ranks=tuple(_merge([[c] for c in clean if c.rank == rank], units, num_micro_steps, rank) for rank in ranks),
        slowest=_merge(_group_by_step(clean, len(ranks)), units, num_micro_steps, SLOWEST),
        shapes=shapes,
    )


def knows_gradients(exchange: StepExchange) -> bool:
    """Whether the gradients seen are all that is exchanged, as they are or compressed."""
    return gradients_fill_buckets(exchange) or find_compression(exchange) is not None


def find_hook(exchange: StepExchange) -> str | None:
    """The comm hook that makes what was sent of the gradients seen; None where they do not tell it.

    "none" stands for every hook that sends the gradients as they are.
    """
    rank = find_compression(exchange)
    if rank is not None:
        return f"{POWERSGD}:{rank}"
    if not gradients_fill_buckets(exchange):
        return None
    held, sent = {g.dtype for g in exchange.gradients}, {b.collective.dtype for b in exchange.buckets}
    if held == sent:
        return "none"
    return CASTING_HOOKS.get(sent.pop()) if len(sent) == 1 else None


def find_compression(exchange: StepExchange) -> int | None:
    """PowerSGD's rank, with which the gradients seen give just as many elements as were sent; None for none."""
    sent = sum(bucket.collective.num_elements for bucket in exchange.buckets)
    return _find_rank(exchange.shapes, sent) if exchange.hook and exchange.shapes else None


@lru_cache(maxsize=8)
def _find_rank(shapes: tuple[tuple[int, ...], ...], sent: int) -> int | None:
    elements = [(prod(shape), shape) for shape in shapes]
    for rank in range(1, MOST_RANK + 1):
        parts = split_bucket(elements, rank)
        if parts.p_bytes + parts.q_bytes + parts.other_bytes == sent:
            return rank
    return None


def gradients_fill_buckets(exchange: StepExchange) -> bool:
    """Whether the gradients seen are exactly what the buckets carry, element for element."""
    gradients = exchange.gradients
    if not gradients or any(gradient.num_bytes < 0 for gradient in gradients):
        return False
    sent = sum(bucket.collective.num_elements for bucket in exchange.buckets)
    return sent == sum(g.num_bytes // ITEM_BYTES.get(g.dtype, 4) for g in gradients)


def _find_common_starts(schedules: Sequence[StepSchedule]) -> dict[int, int]:
    """Per step, the mean over the ranks of its start, on the reference rank's clock."""
    starts: dict[int, list[int]] = {}
    for schedule in schedules:
        start = schedule.exchange.step.start_ns - schedule.clock_offset_ns
        starts.setdefault(schedule.step, []).append(start)
    return {step: sum(times) // len(times) for step, times in starts.items()}


def _clean_step(
    observation: RankObservation, schedule: StepSchedule, units: Sequence[GradientReady], context: tuple[float, int]
) -> _CleanStep:
    slowdown, common_start = context
    exchange = schedule.exchange
    step, backward = exchange.step, exchange.backward
    observed = np.array([*(g.ready_device_ns for g in units), backward.end_ns - backward.start_ns], dtype=np.int64)
    on_cpu = observation.device_type == "cpu"
    launches = exchange.launch_spans if on_cpu else exchange.launch_spans[:0]
    if exchange.hook is not None:
        launches = union(launches, exchange.hook.spans)
    launching = measure_coverage(launches)
    disturbing = difference(observation.communication, launches) if on_cpu else observation.overlap
    communicating = measure_coverage(disturbing)
    zero = backward.start_ns
    launched = launching(observed + zero) - launching([zero])
    beside = communicating(observed + zero) - communicating([zero])
    clean = observed - launched - beside * (1 - 1 / slowdown)
    finish = max(exchange.blocking_ns, exchange.host_tail_ns)
    if on_cpu:
        within = total(exchange.hook.waiting) if exchange.hook else 0
        finish = exchange.blocking_ns - within + exchange.copy_back_ns
    return _CleanStep(
        rank=schedule.rank,
        step=step,
        schedule=schedule,
        before=backward.start_ns - schedule.clock_offset_ns - common_start,
        ready_host=np.array([g.ready_host_ns for g in units], dtype=np.float64),
        ready_device=clean[:-1],
        idle=np.array([g.idle_ns for g in units], dtype=np.float64),
        backward=float(clean[-1]),
        after=step.end_ns - backward.end_ns - finish,
    )


def _group_by_step(clean: Sequence[_CleanStep], num_ranks: int) -> list[list[_CleanStep]]:
    """The steps that every rank recorded; all of them where there is no such step."""
    groups: dict[int, list[_CleanStep]] = {}
    for one in clean:
        groups.setdefault(one.step.number, []).append(one)
    return [group for group in groups.values() if len(group) == num_ranks] or list(groups.values())


def _merge(
    groups: Sequence[Sequence[_CleanStep]], units: Sequence[GradientReady], num_micro_steps: int, rank: int
) -> RankProfile:
    """The median over the groups (one a step) of the last rank in each.

    `other_ns` is what data, forward, backward and the optimizer leave of the step, the exchange's finish excepted.
    """
    before = _median([max(c.before for c in group) for group in groups])
    ends = [max(c.before + c.backward for c in group) - max(c.before for c in group) for group in groups]
    device = np.median([_last_ready(group) for group in groups], axis=0)
    host = np.median([np.max([c.ready_host for c in group], axis=0) for group in groups], axis=0)
    device = np.maximum.accumulate(device)
    idle = np.maximum.accumulate(np.median([np.min([c.idle for c in group], axis=0) for group in groups], axis=0))
    backward = max(_median(ends), float(device[-1]))
    steps = [[c.step for c in group] for group in groups]
    data = _median([max(step.sum_phase_ns("data") for step in group) for group in steps])
    forward = _median([max(step.sum_phase_ns("forward") for step in group) for group in steps]) / num_micro_steps
    optimizer = _median([float(np.mean([step.sum_phase_ns("optimizer") for step in group])) for group in steps])
    after = _median([float(np.mean([c.after for c in group])) for group in groups])
    known = data + num_micro_steps * forward + (num_micro_steps - 1) * backward + optimizer
    bound = [step.host_bound_ns / max(1, step.end_ns - step.start_ns) for group in steps for step in group]
    return RankProfile(
        rank=rank,
        data_ns=round(data),
        forward_ns=round(forward),
        backward_ns=round(backward),
        optimizer_ns=round(optimizer),
        other_ns=round(before + after - known),
        host_bound_fraction=float(np.median(bound)),
        gradients=tuple(
            GradientReady(
                index=unit.index,
                num_bytes=unit.num_bytes,
                dtype=unit.dtype,
                ready_host_ns=round(float(at_host)),
                ready_device_ns=round(float(at_device)),
                idle_ns=round(float(idled)),
            )
            for unit, at_host, at_device, idled in zip(units, host, device, idle, strict=True)
        ),
    )


def _last_ready(group: Sequence[_CleanStep]) -> Floats:
    """Per gradient the last rank's time, from the start of the last rank's backward."""
    return np.asarray(np.max([c.before + c.ready_device for c in group], axis=0) - max(c.before for c in group))


def _buckets_as_gradients(schedule: StepSchedule) -> tuple[GradientReady, ...]:
    """Without gradient sizes the observed buckets are the smallest units that are known."""
    backward = schedule.exchange.backward
    units = []
    for index, bucket in enumerate(schedule.exchange.buckets):
        device = bucket.ready_device_ns if bucket.ready_device_ns is not None else bucket.collective.start_ns
        host = bucket.ready_host_ns if bucket.ready_host_ns is not None else device
        units.append(
            GradientReady(
                index=index,
                num_bytes=bucket.collective.num_bytes,
                dtype=bucket.collective.dtype,
                ready_host_ns=host - backward.host_start_ns,
                ready_device_ns=device - backward.start_ns,
            )
        )
    return tuple(units)


def _median(values: Sequence[float]) -> float:
    return float(np.median(values))
