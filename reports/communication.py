"""The communication models of a report as rows: one for each segment between kinks, or one for each model."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from advisor.schema import CommModel, CommSegment, Report, SampleSource
from reports.text import UNKNOWN, format_bandwidth, format_bytes, format_estimate_ns, format_rate, visible

HEADER = ("collective", "dtype", "ranks", "sizes", "latency", "bandwidth", "bus bandwidth", "samples")
SUMMARY_HEADER = ("group", "collective", "dtype", "latency", "bus bandwidth", "kinks", "source")
MAX_MODELS = 12
"""Lines of models that a terminal should show; those with the most samples are kept."""
MAX_NAMES = 4
"""Models that a sentence names."""
SOURCES: dict[SampleSource, str] = {"trace": "trace", "probe": "probe", "nccl_tests": "nccl-tests"}


def tabulate_models(report: Report) -> tuple[tuple[str, ...], ...]:
    """A row under `HEADER` for each segment; what is said of the whole model stands in its first or last row."""
    return tuple(_row(model, index) for model in report.comm_models for index in range(len(model.segments)))


def summarize_models(report: Report) -> tuple[tuple[str, ...], ...]:
    """A row under `SUMMARY_HEADER` for each model, in the report's order; nothing in it acts on a terminal."""
    kept = sorted(report.comm_models, key=lambda model: -len(model.samples))[:MAX_MODELS]
    return tuple(_summarize(model) for model in report.comm_models if model in kept)


def explain_models(report: Report) -> tuple[str, ...]:
    """What has to be said of the models, each thing once, with those that it holds for."""
    names_of: dict[str, dict[str, None]] = defaultdict(dict)
    for model in report.comm_models:
        if model.message:
            names_of[model.message][f"{model.kind} of {model.dtype}" if model.dtype else model.kind] = None
    return tuple(f"{_enumerate(tuple(names))}: {message}" for message, names in names_of.items())


def _enumerate(names: Sequence[str]) -> str:
    more = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def _summarize(model: CommModel) -> tuple[str, ...]:
    return (
        visible(model.process_group) or UNKNOWN,
        visible(model.kind),
        visible(model.dtype),
        format_estimate_ns(model.segments[0].alpha_ns if model.latency_known and model.segments else None),
        format_bandwidth(model.busbw_bytes_per_s),
        ", ".join(map(format_bytes, model.kinks_bytes)) or "none",
        ", ".join(SOURCES[source] for source in model.sources),
    )


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
