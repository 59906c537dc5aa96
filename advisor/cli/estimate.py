"""`ddp-advisor estimate`: what a step would take, from a few numbers and without a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from advisor.cli._quantities import RATES, SIZES, TIMES_NS, read_layers, read_quantity

if TYPE_CHECKING:
    from advisor.schema import DDPConfig

JOB = "The job"
LINK = "The link"
SETTINGS = "Settings of DistributedDataParallel"


def estimate(
    layers: Annotated[
        str,
        typer.Argument(
            metavar="LAYERS",
            help="Sizes in the model's order, in parameters (12x7M) or bytes (12x28MB); also 350M/24 and 1M,4M,8M.",
        ),
    ],
    backward: Annotated[str, typer.Option(metavar="TIME", help="Such as 15ms.", rich_help_panel=JOB)],
    bandwidth: Annotated[
        str, typer.Option(metavar="RATE", help="What one rank sends, such as 10GB/s.", rich_help_panel=LINK)
    ],
    forward: Annotated[str, typer.Option(metavar="TIME", rich_help_panel=JOB)] = "0",
    optimizer: Annotated[str, typer.Option(metavar="TIME", rich_help_panel=JOB)] = "0",
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16", "float64"],
        typer.Option(help="Of the gradients.", rich_help_panel=JOB),
    ] = "float32",
    ranks: Annotated[int, typer.Option(min=1, metavar="N", rich_help_panel=LINK)] = 2,
    latency: Annotated[
        str, typer.Option(metavar="TIME", help="Of one all-reduce, such as 60us.", rich_help_panel=LINK)
    ] = "0",
    concurrency: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="All-reduces at once: 1 with NCCL, 2 with gloo.", rich_help_panel=LINK),
    ] = 1,
    cap: Annotated[
        str,
        typer.Option(
            metavar="CAP,…",
            help="bucket_cap_mb in MiB, or with a unit (25MB), or unset; several to compare.",
            rich_help_panel=SETTINGS,
        ),
    ] = "unset",
    accumulation_steps: Annotated[
        int, typer.Option(min=1, metavar="N", help="Micro-steps per optimizer step.", rich_help_panel=SETTINGS)
    ] = 1,
    comm_hook: Annotated[
        Literal["none", "fp16", "bf16", "noop"],
        typer.Option(help="noop sends nothing: the ceiling.", rich_help_panel=SETTINGS),
    ] = "none",
    as_json: Annotated[bool, typer.Option("--json", metavar="", help="Print everything as JSON.")] = False,
) -> None:
    """Draw the step of a job that is told in a few numbers: what communication hides, and what sticks out.

    Nothing is measured: this is for learning how buckets, latency and bandwidth play together.

    Example: ddp-advisor estimate 24x14M --backward 120ms --bandwidth 12GB/s --latency 60us --ranks 8
    """
    from rich.console import Console

    from advisor.estimate import ITEM_BYTES, estimate_job, find_best_configs
    from advisor.replay import sends_nothing
    from advisor.schema import DDPConfig, JobSketch, encode_json
    from reports import render_estimate

    sketch = JobSketch(
        layer_parameters=read_layers(layers, ITEM_BYTES[dtype]),
        dtype=dtype,
        forward_ns=round(read_quantity(forward, "--forward", TIMES_NS)),
        backward_ns=round(read_quantity(backward, "--backward", TIMES_NS)),
        optimizer_ns=round(read_quantity(optimizer, "--optimizer", TIMES_NS)),
        latency_ns=read_quantity(latency, "--latency", TIMES_NS),
        bandwidth_bytes_per_s=read_quantity(bandwidth, "--bandwidth", RATES),
        concurrency=concurrency,
    )
    config = DDPConfig(
        world_size=ranks,
        backend="unknown",
        wrapper="torch",
        comm_hook=comm_hook,
        accumulation_steps=accumulation_steps,
    )
    settings = [(word.strip(), read_cap(word.strip(), config)) for word in cap.split(",")]
    if not sends_nothing(config):
        settings += zip(("best cap", "best list"), find_best_configs(sketch, config), strict=True)
    answer = estimate_job(sketch, settings)
    if as_json:
        typer.echo(encode_json(answer), nl=False)
    else:
        render_estimate(answer, Console())


def read_cap(text: str, config: DDPConfig) -> DDPConfig:
    """`config` with the cap that `text` means: MiB as in torch, a size with its unit, or `unset`.

    Raises:
        UsageError: It means none of them.
    """
    from msgspec.structs import replace

    from advisor.bucketing import MIB

    if text == "unset":
        return replace(config, bucket_cap_mb=None)
    return replace(config, bucket_cap_mb=read_quantity(text, "--cap", {"": float(MIB), **SIZES}) / MIB)
