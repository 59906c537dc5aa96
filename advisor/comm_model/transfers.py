"""Collectives as samples of the communication model: what each took for itself, and what ran beside it.

Collectives in flight share the link, so a sample is the *exclusive* time of a transfer: the integral of
1 / (number of transfers under way) from its last arrival to its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from advisor.collectives import Collective, MatchedCollective
from advisor.exchange import classify_collective
from advisor.intervals import Intervals, build_intervals, intersection, measure_exclusive_times, total
from advisor.observation import RankObservation
from advisor.schema import SampleSource


@dataclass(frozen=True)
class Transfer:
    """One sample of the fit."""

    key: tuple[str, str, str]
    """Process group, kind, dtype."""
    step: int
    """What is measured in one step shares its disturbances; of a ladder each visit is one."""
    num_bytes: int
    exclusive_ns: float
    compute_fraction: float
    complete: bool
    """False where a peer's trace is missing, so that waiting may hide in it."""
    protocol: str = ""
    """NCCL's algorithm and protocol, where the kernel's name tells them."""
    source: SampleSource = "trace"


def collect_transfers(matched: Sequence[MatchedCollective], observations: Sequence[RankObservation]) -> list[Transfer]:
    """Turns matched collectives of known size into samples.

    Set aside are the first one after the profiler started, and the single elements in which ranks under `Join` wait for
    each other; yet they too had their share of the link while they ran.

    Args:
        matched: Collectives seen from all ranks.
        observations: The ranks, the reference rank first.
    """
    overlap_of = {observation.rank: observation.overlap for observation in observations}
    in_order = sorted(matched, key=lambda match: match.last_arrival_ns)
    times_ns = measure_exclusive_times([(m.last_arrival_ns, m.last_arrival_ns + m.transfer_ns) for m in in_order])
    transfers = []
    for match, exclusive_ns in zip(in_order, times_ns, strict=True):
        reference = match.members[0]
        if (
            match.transient
            or reference.step is None
            or reference.num_bytes <= 0
            or classify_collective(reference) == "join"
        ):
            continue
        transfers.append(
            Transfer(
                key=(reference.process_group, str(reference.kind), reference.dtype),
                step=reference.step,
                num_bytes=reference.num_bytes,
                exclusive_ns=exclusive_ns,
                compute_fraction=max(_busy_fraction(m, match, overlap_of[m.rank]) for m in match.members),
                complete=match.complete,
                protocol=reference.protocol,
            )
        )
    return transfers


def _busy_fraction(member: Collective, match: MatchedCollective, overlap: Intervals) -> float:
    arrival = match.arrival_on_clock_of(member)
    own = build_intervals([arrival], [member.end_ns])
    return total(intersection(own, overlap)) / total(own) if len(own) else 0.0
