"""Put the profiler and the manifest around any training under DDP, ours or a person's own.

    with record(ddp_model, out="runs/mine") as recorder:
        while not recorder.done:
            train_one_optimizer_step()
            recorder.step()

The first steps are left out: DDP's first one is a single all-reduce of the whole model, and buckets are rebuilt after
it (after the second one with a static graph). The profiler itself then warms up for a few steps more.
"""

from __future__ import annotations

import gzip
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

from advisor.errors import InputError, RunError
from advisor.schema import DDPConfig, DeviceInfo, RunManifest
from workloads.ddp import BucketedDDP
from workloads.manifest import RunLabel, build_manifest, describe_device, read_config
from workloads.run_folder import (
    PARTIAL,
    abandon_run_folder,
    default_run_folder,
    open_run_folder,
    publish_manifest,
    publish_trace,
    trace_name,
)
from workloads.wrap import num_settling_steps

PROFILER_WARMUP_STEPS = 2
"""The first collectives after the profiler starts are transients."""
CHUNK_BYTES = 1 << 20


class Recorder:
    """Counts optimizer steps for the profiler.

    Attributes:
        num_steps: Steps that a complete recording takes, those that are left out included.
        done: Whether this rank's trace is written; further steps cost nothing.
    """

    def __init__(self, profiler: profile, num_steps: int) -> None:
        self.num_steps = num_steps
        self._profiler = profiler
        self._steps_done = 0

    @property
    def done(self) -> bool:
        """Whether this rank's trace is written."""
        return self._steps_done >= self.num_steps

    def step(self) -> None:
        """Tells the profiler that an optimizer step has ended."""
        if not self.done:
            self._profiler.step()
            self._steps_done += 1


@contextmanager
def record(
    model: nn.Module,
    out: str | Path | None = None,
    *,
    num_steps: int = 16,
    config: DDPConfig | None = None,
    label: RunLabel | None = None,
) -> Iterator[Recorder]:
    """Records `num_steps` optimizer steps of a wrapped model into a run folder; every rank calls it.

    Nothing but `recorder.step()` is needed, once after each optimizer step. The folder appears whole when the block
    ends without an error on all ranks, and not at all otherwise.

    Args:
        model: A `DistributedDataParallel` or `BucketedDDP`, compiled or not.
        out: The run folder, on every rank's file system; None means `runs/<script>-<time>`.
        num_steps: Steps to profile, after those that are left out.
        config: The settings for the manifest; None reads them from the model. Give it when gradients accumulate.
        label: What the run is called in the manifest; None takes the script's name.

    Yields:
        The recorder.

    Raises:
        InputError: The folder cannot be written or holds something already.
        RunError: The block ended before the recording was complete.
    """
    wrapped: nn.Module = getattr(model, "_orig_mod", model)
    config = config or read_config(wrapped)
    label = label or RunLabel(workload=Path(sys.argv[0]).stem, command=tuple(sys.argv))
    device = next(wrapped.parameters()).device
    folder = _open_together(Path(out) if out else default_run_folder(label.workload))
    try:
        with _gradient_marks(wrapped), _profiler(folder, device, config, num_steps) as profiler:
            recorder = Recorder(profiler, num_skipped_steps(config) + num_steps)
            yield recorder
        manifest = build_manifest(wrapped, config, _finish_together(recorder, device), label)
    except BaseException:
        abandon_run_folder(folder)
        raise
    _publish_together(folder, manifest)


def num_skipped_steps(config: DDPConfig) -> int:
    """Steps that run before the first recorded one."""
    return num_settling_steps(config) + PROFILER_WARMUP_STEPS


@contextmanager
def _gradient_marks(model: nn.Module) -> Iterator[None]:
    """Our own wrapper can mark every gradient; torch's cannot."""
    if not isinstance(model, BucketedDDP):
        yield
        return
    model.record_gradient_marks = True
    try:
        yield
    finally:
        model.record_gradient_marks = False


def _profiler(folder: Path, device: torch.device, config: DDPConfig, num_steps: int) -> profile:
    trace = folder / PARTIAL / trace_name(dist.get_rank())
    return profile(
        activities=[ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else []),
        schedule=schedule(
            skip_first=num_settling_steps(config), wait=0, warmup=PROFILER_WARMUP_STEPS, active=num_steps, repeat=1
        ),
        on_trace_ready=partial(_export, trace),
        record_shapes=True,
    )


def _export(trace: Path, profiler: profile) -> None:
    # torch compresses line by line, which takes many times as long.
    plain = trace.with_suffix("")
    profiler.export_chrome_trace(str(plain))
    with plain.open("rb") as source, gzip.open(trace, "wb", compresslevel=6) as target:
        shutil.copyfileobj(source, target, CHUNK_BYTES)
    plain.unlink()


def _open_together(folder: Path) -> Path:
    """Rank 0 decides on the folder for all; where it cannot, every rank raises rank 0's error."""
    told: list[str | None] = [None, None]
    if dist.get_rank() == 0:
        try:
            open_run_folder(folder)
            told = [str(folder.absolute()), None]
        except InputError as error:
            told = [None, str(error)]
    dist.broadcast_object_list(told)
    agreed, sentence = told
    if agreed is None:
        raise InputError(sentence)
    # On a host that does not share rank 0's file system the folder is not there yet.
    (Path(agreed) / PARTIAL).mkdir(parents=True, exist_ok=True)
    return Path(agreed)


def _finish_together(recorder: Recorder, device: torch.device) -> list[DeviceInfo]:
    """Every rank's device, once all of them have written their traces."""
    told: list[tuple[DeviceInfo, bool] | None] = [None] * dist.get_world_size()
    dist.all_gather_object(told, (describe_device(dist.get_rank(), device), recorder.done))
    devices = [answer[0] for answer in told if answer]
    unfinished = [answer[0].rank for answer in told if answer and not answer[1]]
    if unfinished:
        raise RunError(
            f"The recording on rank {unfinished[0]} ended before its {recorder.num_steps} steps were done: "
            "call recorder.step() once after each optimizer step and train until recorder.done."
        )
    return devices


def _publish_together(folder: Path, manifest: RunManifest) -> None:
    publish_trace(folder, dist.get_rank())
    dist.barrier()
    if dist.get_rank() == 0:
        publish_manifest(folder, manifest)
