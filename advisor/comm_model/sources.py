"""Several sources for one model: where they agree they are fitted together, else one is taken and a note says why.

A trace shows the collectives of the job itself, yet few sizes; a ladder shows every size, yet outside of the job.
Fitted together, both tell the shape (latency, kinks, slow-down by computation) and the trace alone the level: a ladder
may be off by a factor that is the same for all sizes. A ladder that differs by more was measured under other
conditions: then nothing of it is used, its slow-downs neither.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec
import numpy as np

from advisor.comm_model.fit import CommFit, fit_comm_model, fit_comm_models
from advisor.comm_model.ladders import list_transfers
from advisor.comm_model.transfers import Transfer
from advisor.schema import Backend, CommModel, Ladder, QualityNote

AGREEMENT = 1.25
"""Sources agree while the typical ratio of their predictions for the trace's sizes lies within this factor."""
NAMES = {"probe": "The probe", "nccl_tests": "nccl-tests", "trace": "The trace"}


class Sources(NamedTuple):
    """The models of a run, and what else may be taken from the ladders beside its trace."""

    fits: list[CommFit]
    ladders: list[Ladder]
    """Those of the job's ranks and backend, without the points that its trace contradicts."""
    notes: list[QualityNote]


def fit_sources(transfers: Sequence[Transfer], ladders: Sequence[Ladder], world_size: int, backend: Backend) -> Sources:
    """Fits the models of a run from its trace and from the ladders that were measured on its machines.

    Args:
        transfers: The samples of the trace.
        ladders: Measured apart from it.
        world_size: Ranks of the job.
        backend: The job's.

    Returns:
        The models, what may be taken from the ladders beside them, and what to say about the sources. Where a ladder
        differs from the trace in one dtype of a kind, it vouches for no dtype of that kind that the trace lacks.
    """
    fitting = [ladder for ladder in ladders if not _explain_mismatch(ladder, world_size, backend)]
    notes = [why for ladder in ladders if (why := _explain_mismatch(ladder, world_size, backend))]
    elsewhere = [transfer for ladder in fitting for transfer in list_transfers(ladder)]
    fits = []
    used: dict[tuple[str, ...], bool] = {}
    for own in fit_comm_models(transfers, world_size, backend):
        key = (own.model.process_group, own.model.kind, own.model.dtype)
        same = [replace(t, key=key) for t in elsewhere if t.key[1:] == key[1:]]
        if same:
            own, said = _combine(own, [t for t in transfers if t.key == key], same, backend)
            notes += said
            used[key[1:]] = used.get(key[1:], True) and own.model.sources != ("trace",)
        fits.append(own)
    trusted = [_leave_out_unused(ladder, used) for ladder in fitting]
    known = {(fit.model.kind, fit.model.dtype) for fit in fits}
    alone = [t for ladder in trusted for t in list_transfers(ladder) if t.key[1:] not in known]
    fits += fit_comm_models(alone, world_size, backend)
    return Sources(fits, trusted, [QualityNote(message=note) for note in notes])


def _leave_out_unused(ladder: Ladder, used: Mapping[tuple[str, ...], bool]) -> Ladder:
    """The ladder without what was not used beside the trace, by kind and dtype, and what nobody could compare there."""
    unused_kinds = {kind for (kind, _), is_used in used.items() if not is_used}
    points = tuple(p for p in ladder.points if used.get((p.kind, p.dtype), p.kind not in unused_kinds))
    return msgspec.structs.replace(ladder, points=points)


def _explain_mismatch(ladder: Ladder, world_size: int, backend: Backend) -> str:
    name = NAMES[ladder.source]
    if ladder.world_size != world_size:
        return f"{name} ran on {ladder.world_size} ranks and the job on {world_size}: it is not used."
    if "unknown" not in (backend, ladder.backend) and ladder.backend != backend:
        return f"{name} measured {ladder.backend} and the job uses {backend}: it is not used."
    return ""


def _combine(
    own: CommFit, transfers: Sequence[Transfer], elsewhere: Sequence[Transfer], backend: Backend
) -> tuple[CommFit, list[str]]:
    """The fit of a trace and a ladder for one key, and what has to be said about it."""
    world_size, what = own.model.world_size, f"{own.model.kind} of {own.model.dtype}"
    theirs = fit_comm_model(elsewhere, world_size, backend)
    names = " and ".join(NAMES[source] for source in theirs.model.sources)
    if not own.model.complete:
        return theirs, [f"{names} gave the model of {what}: a peer's trace is missing, and waiting hides in the rest."]
    ratio = compare_with(theirs.model, transfers, own.communication_slowdown.value)
    if ratio is None:
        return own, [f"{names} measured no size near the trace's {what}: of it the trace alone is used."]
    if 1 / AGREEMENT <= ratio <= AGREEMENT:
        return fit_comm_model([*transfers, *elsewhere], world_size, backend), []
    return own, [
        f"{names} measured {ratio:.2f} times the trace's times for {what} ({1 / AGREEMENT:g} to {AGREEMENT:g} is "
        "agreement): of it the trace alone is used, because it was measured inside the job. Measure again on the same "
        "machines, with nothing else running."
    ]


def compare_with(model: CommModel, transfers: Sequence[Transfer], slowdown: float) -> float | None:
    """The typical ratio of a model's times to some transfers, these freed from the slow-down by computation.

    None without a transfer of a size that the model need not extrapolate to.
    """
    times_of: dict[int, list[float]] = defaultdict(list)
    for transfer in transfers:
        clean_ns = transfer.exclusive_ns / (1 + (slowdown - 1) * transfer.compute_fraction)
        times_of[transfer.num_bytes].append(clean_ns)
    logarithms = [
        np.log(predicted.value / np.median(times))
        for size, times in times_of.items()
        if (predicted := model.predict(size)).basis != "extrapolated"
    ]
    return float(np.exp(np.median(logarithms))) if logarithms else None
