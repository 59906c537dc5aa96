"""A ladder: collectives of known size, timed on purpose, by our probe or by nccl-tests."""

from __future__ import annotations

from advisor.schema.base import SCHEMA_VERSION, Backend, Struct
from advisor.schema.models import SampleSource
from advisor.schema.run import DeviceInfo


class LadderPoint(Struct, frozen=True, kw_only=True):
    """One kind of collective, dtype and size under one condition."""

    kind: str
    dtype: str
    num_bytes: int
    """Of the input of each rank, as in a trace's `In msg nelems`: of an all-gather its share of the array."""
    in_flight: int = 1
    """How many such collectives were started together; their time is that until the last one ended."""
    under_compute: bool = False
    """Whether every rank computed from before the collective to after it."""
    rounds_ns: tuple[tuple[int, ...], ...]
    """By visit, each repetition's shortest time over the ranks: what it took without waiting for peers."""
    compute_slowdowns: tuple[float, ...] = ()
    """By visit, the slowest rank's computing time for the same work beside communication over that alone."""


class Ladder(Struct, frozen=True, kw_only=True):
    """`probe.json`: how long collectives of every size take on some machines, measured outside of training."""

    schema_version: int = SCHEMA_VERSION
    tool_version: str = ""
    created: str = ""
    """ISO 8601 with the time zone."""
    source: SampleSource = "probe"
    world_size: int
    backend: Backend
    points: tuple[LadderPoint, ...]
    budget_s: float | None = None
    elapsed_s: float | None = None
    left_out: tuple[str, ...] = ()
    """What was not measured, or not closely, and why."""
    devices: tuple[DeviceInfo, ...] = ()
    versions: dict[str, str] = {}
    environment: dict[str, str] = {}
