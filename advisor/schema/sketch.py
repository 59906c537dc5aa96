"""A job told in a few numbers instead of traces, and what its step would take."""

from __future__ import annotations

from advisor.schema.answers import Prediction
from advisor.schema.base import SCHEMA_VERSION, Struct


class JobSketch(Struct, frozen=True, kw_only=True):
    """A job as one tells it to a colleague. Backward's time is shared among the layers by their parameters."""

    layer_parameters: tuple[int, ...]
    """Parameters of each layer, in the model's order: backward begins with the last."""
    dtype: str = "float32"
    """Of the gradients, as torch spells it."""
    forward_ns: int = 0
    backward_ns: int
    optimizer_ns: int = 0
    latency_ns: float = 0.0
    """What every all-reduce costs beside its bytes."""
    bandwidth_bytes_per_s: float
    """What one rank can send."""
    concurrency: int = 1
    """All-reduces under way at once, which share the bandwidth."""


class MemoryPerRank(Struct, frozen=True, kw_only=True):
    """What training with Adam keeps on every rank beside the activations; DDP divides none of it by the ranks."""

    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    """Adam's two moments, and float32 weights beside 16-bit ones."""
    buckets_bytes: int
    """DDP's own copy of the gradients, which `gradient_as_bucket_view=True` saves."""


class SettingEstimate(Struct, frozen=True, kw_only=True):
    """One DDP setting of a sketched job; times per optimizer step."""

    name: str
    prediction: Prediction
    communication_ns: float
    """Its all-reduces one after the other."""
    bound_ns: float
    """The step if communication could start with backward and in one piece: no buckets beat it."""
    traffic_bytes: float
    """What each rank sends: 2 (P - 1) / P of the bytes on the wire, as in a ring of P ranks."""


class JobEstimate(Struct, frozen=True, kw_only=True):
    """What `ddp-advisor estimate --json` prints."""

    schema_version: int = SCHEMA_VERSION
    sketch: JobSketch
    memory: MemoryPerRank
    settings: tuple[SettingEstimate, ...]
