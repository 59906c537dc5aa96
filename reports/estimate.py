"""A sketched job on a terminal: settings side by side, and each schedule drawn to the same scale."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from advisor.schema import BucketSpan, JobEstimate, JobSketch, SettingEstimate
from reports.palette import BLOCKING, HIDDEN, PARTS
from reports.text import format_ms, format_ns, format_setting, format_traffic, visible

LABEL = 13
"""Columns left of a drawing."""
WIDEST = 100
MOST_CAPS_SHOWN = 8
FILLS = ("█", "▒")
"""Neighbouring buckets look different without colour too."""


def render_estimate(estimate: JobEstimate, console: Console) -> None:
    """Prints the job, its settings, their schedules, and what no setting changes."""
    _print_job(estimate, console)
    _print_settings(estimate.settings, console)
    _print_schedules(estimate, console)
    _print_limits(estimate, console)


def _print_job(estimate: JobEstimate, console: Console) -> None:
    sketch, config = estimate.sketch, estimate.settings[0].prediction.config
    num_parameters = sum(sketch.layer_parameters)
    layers = "1 layer" if len(sketch.layer_parameters) == 1 else f"{len(sketch.layer_parameters)} layers"
    ranks = "1 rank" if config.world_size == 1 else f"{config.world_size} ranks"
    facts = [
        f"{layers}, {num_parameters:,} parameters, {format_traffic(estimate.memory.gradients_bytes)} of {sketch.dtype} "
        f"gradients, {ranks}"
    ]
    if config.comm_hook != "none":
        facts.append(f"comm_hook {config.comm_hook}")
    if config.accumulation_steps > 1:
        facts.append(f"{config.accumulation_steps} micro-steps a step")
    console.print()
    console.print(Text("Estimate, nothing measured", "bold underline"))
    console.print(Text(", ".join(facts)))


def _print_settings(settings: Sequence[SettingEstimate], console: Console) -> None:
    accumulates = settings[0].prediction.config.accumulation_steps > 1
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column("setting")
    for column in ("cap in MiB", "buckets", "communication", "exposed", "step", *(["micro-step"] * accumulates)):
        table.add_column(column, justify="right")
    fastest = min(setting.prediction.step_ns.value for setting in settings)
    for setting in settings:
        prediction = setting.prediction
        step = prediction.step_ns.value
        per_micro_step = [format_ms(step / prediction.config.accumulation_steps)] * accumulates
        table.add_row(
            visible(setting.name),
            "a list" if prediction.config.bucket_cap_mb_list else _say_cap(prediction.config.bucket_cap_mb),
            f"{len(prediction.buckets)}",
            format_ms(setting.communication_ns),
            format_ms(prediction.exposed_ns.value),
            Text(format_ms(step), "bold green" if step <= fastest else ""),
            *per_micro_step,
        )
    console.print(table)
    console.print(Text("ms; exposed is what communication adds after the end of backward", "dim"))


def _say_cap(cap_mb: float | None) -> str:
    return format_setting("bucket_cap_mb", cap_mb).removesuffix(" MiB")


def _print_schedules(estimate: JobEstimate, console: Console) -> None:
    backward_ns = estimate.sketch.backward_ns
    ends = [bucket.end_ns for setting in estimate.settings for bucket in setting.prediction.buckets]
    longest = max([backward_ns, *ends, 1])
    width = min(console.width, WIDEST) - LABEL
    for setting in estimate.settings:
        buckets = setting.prediction.buckets
        title = Text.assemble("\n", (visible(setting.name), "bold"), f": {_say_tail(buckets, estimate.sketch)}")
        console.print(title)
        console.print(_label("backward") + Text("█" * round(backward_ns / longest * width), PARTS["backward"]))
        for number, channel in enumerate(_split_channels(buckets, estimate.sketch.concurrency)):
            label = "all-reduce" if estimate.sketch.concurrency == 1 else f"channel {number}"
            console.print(_label(label) + _draw_channel(channel, backward_ns, width / longest), no_wrap=True)
    scale = format_ns(longest)
    console.print(Text(f"{'':{LABEL}}0{scale:>{width - 1}}", "dim"))
    console.print(Text(f"{' and '.join(FILLS)} tell neighbouring buckets apart", "dim"))


def _label(name: str) -> Text:
    return Text(f"  {name:<{LABEL - 2}}", "dim")


def _say_tail(buckets: Sequence[BucketSpan], sketch: JobSketch) -> str:
    """What sticks out behind backward, and whether it is one bucket or a queue."""
    late = [bucket for bucket in buckets if bucket.end_ns > sketch.backward_ns]
    tail = max((bucket.end_ns for bucket in buckets), default=0) - sketch.backward_ns
    if not late:
        return "all of it is hidden"
    queued = max(bucket.start_ns - bucket.ready_ns for bucket in late)
    queue = f", queued up to {format_ns(queued)}" if queued > 0 else ""
    if len(late) == 1:
        return f"the last bucket ends {format_ns(tail)} after backward{queue}"
    return f"{len(late)} of {len(buckets)} buckets end up to {format_ns(tail)} after backward{queue}"


def _split_channels(buckets: Sequence[BucketSpan], concurrency: int) -> list[list[BucketSpan]]:
    """Each bucket goes to a channel that is free when it starts."""
    channels: list[list[BucketSpan]] = [[] for _ in range(concurrency)]
    for bucket in buckets:
        free = min(channels, key=lambda channel: channel[-1].end_ns if channel else -1)
        free.append(bucket)
    return channels


def _draw_channel(channel: Sequence[BucketSpan], backward_ns: int, columns_per_ns: float) -> Text:
    """Buckets as blocks of alternating fill; what ends up behind backward in the colour of blocking."""
    border = round(backward_ns * columns_per_ns)
    line = Text()
    for bucket in channel:
        start, end = round(bucket.start_ns * columns_per_ns), round(bucket.end_ns * columns_per_ns)
        line.append(" " * (start - len(line)))
        fill = FILLS[bucket.bucket % len(FILLS)]
        drawn = range(len(line), end)
        line.append(fill * len([column for column in drawn if column < border]), HIDDEN)
        line.append(fill * len([column for column in drawn if column >= border]), BLOCKING)
    return line


def _print_limits(estimate: JobEstimate, console: Console) -> None:
    setting, memory = estimate.settings[0], estimate.memory
    config = setting.prediction.config
    bound = setting.bound_ns / config.accumulation_steps
    kept = memory.weights_bytes + memory.gradients_bytes + memory.optimizer_bytes
    cap_list = estimate.settings[-1].prediction.config.bucket_cap_mb_list
    rows = [
        ("no buckets beat", f"{format_ms(bound)} ms a {'micro-step' if config.accumulation_steps > 1 else 'step'}: "
         "communication from the start of backward, in one piece"),
        ("each rank sends", f"{format_traffic(setting.traffic_bytes)} a step: 2 · (P − 1) / P of what is reduced"),
        ("memory per rank", f"{format_traffic(kept)} for weights, gradients and Adam, "
         f"{format_traffic(memory.buckets_bytes)} for DDP's buckets; activations come on top"),
    ]  # fmt: skip
    if cap_list:
        rows.append(("best list", f"bucket_cap_mb_list = {_say_list(cap_list)} (torch 2.12 or newer)"))
    console.print()
    table = Table.grid(padding=(0, 2))
    for name, value in rows:
        table.add_row(Text(name, "dim"), Text(value))
    console.print(table)


def _say_list(cap_list: Sequence[float]) -> str:
    shown = ", ".join(f"{cap:g}" for cap in cap_list[:MOST_CAPS_SHOWN])
    more = f", … {len(cap_list)} in all, see --json" if len(cap_list) > MOST_CAPS_SHOWN else ""
    return f"[{shown}{more}]"
