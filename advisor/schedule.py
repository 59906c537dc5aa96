"""The gradient exchange seen from all ranks: waiting told from transfer, and blocking charged to buckets.

Each instant that blocks is charged to one bucket, so that the buckets' shares add up to the step's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from advisor.collectives import Collective, MatchedCollective
from advisor.exchange import StepExchange
from advisor.intervals import Intervals, clip, difference, total
from advisor.observation import RankObservation
from advisor.schema import BucketSummary


@dataclass(frozen=True)
class StepSchedule:
    """One rank's exchange in one step, with what only all ranks together tell."""

    rank: int
    exchange: StepExchange
    buckets: tuple[BucketSummary, ...]
    clock_offset_ns: int
    """The rank's clock minus the reference rank's."""

    @property
    def step(self) -> int:
        """The step's number."""
        return self.exchange.step.number


def build_schedules(
    observations: Sequence[RankObservation], matched: Sequence[MatchedCollective]
) -> list[StepSchedule]:
    """Builds the exchange of every step that has one, by rank and step."""
    match_of = {member: match for match in matched for member in match.members}
    return [
        _build_schedule(observation.rank, exchange, match_of)
        for observation in observations
        for exchange in observation.exchanges
    ]


def _build_schedule(
    rank: int, exchange: StepExchange, match_of: Mapping[Collective, MatchedCollective]
) -> StepSchedule:
    collectives = [bucket.collective for bucket in exchange.buckets]
    shares = _share_blocking(exchange.blocking, collectives, match_of)
    offsets = [m.offset_of[rank] for c in collectives if (m := match_of.get(c)) is not None]
    return StepSchedule(
        rank=rank,
        exchange=exchange,
        buckets=tuple(
            _summarize_bucket(exchange, index, match_of.get(bucket.collective), share)
            for index, (bucket, share) in enumerate(zip(exchange.buckets, shares, strict=True))
        ),
        clock_offset_ns=offsets[0] if offsets else 0,
    )


def _summarize_bucket(
    exchange: StepExchange, index: int, match: MatchedCollective | None, blocking_ns: int
) -> BucketSummary:
    bucket = exchange.buckets[index]
    collective, zero = bucket.collective, exchange.step.start_ns
    launch = collective.launch_ns if collective.launch_ns >= 0 else None
    begins = max((t for t in (launch, bucket.ready_device_ns) if t is not None), default=collective.start_ns)
    complete = match if match is not None and match.complete else None
    return BucketSummary(
        rank=collective.rank,
        step=exchange.step.number,
        bucket=index,
        num_bytes=collective.num_bytes,
        num_elements=collective.num_elements,
        dtype=collective.dtype,
        ready_host_ns=_since(zero, bucket.ready_host_ns),
        ready_device_ns=_since(zero, bucket.ready_device_ns),
        launch_ns=_since(zero, launch),
        start_ns=collective.start_ns - zero,
        end_ns=collective.end_ns - zero,
        queue_wait_ns=max(0, collective.start_ns - begins),
        peer_wait_ns=complete.arrival_on_clock_of(collective) - collective.start_ns if complete else None,
        transfer_ns=complete.transfer_ns if complete else None,
        exposed_ns=bucket.exposed_ns,
        blocking_ns=blocking_ns,
    )


def _since(zero: int, time: int | None) -> int | None:
    return None if time is None else time - zero


def _share_blocking(
    blocking: Intervals, buckets: list[Collective], match_of: Mapping[Collective, MatchedCollective]
) -> list[int]:
    """Charges each instant to the bucket in transfer, else the one waiting for peers, else the next in the queue."""
    arrivals = [match_of[b].arrival_on_clock_of(b) if b in match_of else b.start_ns for b in buckets]
    claims = [
        *((arrival, b.end_ns) for arrival, b in zip(arrivals, buckets, strict=True)),
        *((b.start_ns, arrival) for arrival, b in zip(arrivals, buckets, strict=True)),
        *((b.launch_ns if b.launch_ns >= 0 else b.start_ns, b.start_ns) for b in buckets),
    ]
    shares = [0] * len(buckets)
    rest = blocking
    for number, (start, end) in enumerate(claims):
        claimed = clip(rest, start, end)
        if len(claimed):
            shares[number % len(buckets)] += total(claimed)
            rest = difference(rest, claimed)
    shares[-1] += total(rest)
    return shares
