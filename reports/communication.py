"""The communication models of a report as rows: one for each segment, from one kink to the next."""

from __future__ import annotations

from collections import Counter

from advisor.schema import CommModel, CommSegment, Report, SampleSource
from reports.text import UNKNOWN, format_bandwidth, format_bytes, format_estimate_ns, format_rate

HEADER = ("collective", "dtype", "ranks", "sizes", "latency", "bandwidth", "bus bandwidth", "samples")
SOURCES: dict[SampleSource, str] = {"trace": "trace", "probe": "probe", "nccl_tests": "nccl-tests"}


def tabulate_models(report: Report) -> tuple[tuple[str, ...], ...]:
    """A row under `HEADER` for each segment; what is said of the whole model stands in its first or last row."""
    return tuple(_row(model, index) for model in report.comm_models for index in range(len(model.segments)))


def _row(model: CommModel, index: int) -> tuple[str, ...]:
    segment = model.segments[index]
    is_first, is_last = index == 0, index == len(model.segments) - 1
    counts = Counter(sample.source for sample in model.samples)
    samples = ", ".join(f"{count} {SOURCES[source]}" for source, count in counts.items())
    return (
        model.kind,
        model.dtype,
        f"{model.world_size}",
        _name_sizes(segment),
        format_estimate_ns(segment.alpha_ns if model.latency_known else None) if is_first else "",
        format_rate(segment.beta_ns_per_byte) if segment.beta_ns_per_byte.low > 0 else UNKNOWN,
        format_bandwidth(model.busbw_bytes_per_s) if is_last else "",
        samples if is_first else "",
    )


def _name_sizes(segment: CommSegment) -> str:
    if segment.to_bytes is None:
        return f"from {format_bytes(segment.from_bytes)}" if segment.from_bytes else "all"
    start = f"{format_bytes(segment.from_bytes)} " if segment.from_bytes else "up "
    return f"{start}to {format_bytes(segment.to_bytes)}"
