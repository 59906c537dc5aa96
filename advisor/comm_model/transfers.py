"""Collectives as samples of the communication model: what each took for itself, and what ran beside it.

Two collectives in flight share the link, so a sample is the *exclusive* time of a transfer: the integral of
1 / (number of transfers under way) from its last arrival to its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from advisor.collectives import Collective, MatchedCollective
from advisor.exchange import classify_collective
from advisor.intervals import Intervals, build_intervals, intersection, total
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


def collect_transfers(
    matched: Sequence[MatchedCollective], observations: Sequence[RankObservation], *, concurrency: int
) -> list[Transfer]:
    """Turns matched collectives of known size into samples.

    Set aside are the first one after the profiler started, and the single elements in which ranks under `Join` wait for
    each other.

    Args:
        matched: Collectives seen from all ranks.
        observations: The ranks, the reference rank first.
        concurrency: How many collectives the backend runs at once (gloo 2, NCCL 1).
    """
    usable = [
        match
        for match in matched
        if not match.transient
        and match.members[0].step is not None
        and match.members[0].num_bytes > 0
        and classify_collective(match.members[0]) != "join"
    ]
    usable.sort(key=lambda match: match.last_arrival_ns)
    overlap_of = {observation.rank: observation.overlap for observation in observations}
    spans = [(match.last_arrival_ns, match.last_arrival_ns + match.transfer_ns) for match in usable]
    transfers = []
    for index, match in enumerate(usable):
        reference = match.members[0]
        start, end = spans[index]
        near = spans[max(0, index - concurrency * 4) : index + concurrency * 4]
        busy = max(_busy_fraction(member, match, overlap_of[member.rank]) for member in match.members)
        transfers.append(
            Transfer(
                key=(reference.process_group, str(reference.kind), reference.dtype),
                step=int(reference.step or 0),
                num_bytes=reference.num_bytes,
                exclusive_ns=exclusive_time(start, end, near),
                compute_fraction=busy,
                complete=match.complete,
                protocol=reference.protocol,
            )
        )
    return transfers


def exclusive_time(start: int, end: int, spans: Sequence[tuple[int, int]]) -> float:
    """The integral over [start, end) of 1 / (number of `spans` under way), `spans` including this one.

    Example: [0, 10) beside [6, 14): 6 alone and 4 shared by two, 6 + 4 / 2 = 8.
    """
    cuts = sorted({start, end, *(t for span in spans for t in span if start < t < end)})
    shared = 0.0
    for low, high in pairwise(cuts):
        shared += (high - low) / max(1, sum(a <= low and high <= b for a, b in spans))
    return max(shared, 1.0)


def _busy_fraction(member: Collective, match: MatchedCollective, overlap: Intervals) -> float:
    arrival = match.arrival_on_clock_of(member)
    own = build_intervals([arrival], [member.end_ns])
    return total(intersection(own, overlap)) / total(own) if len(own) else 0.0
