"""The lines that record a run well, to paste around a training loop."""

from __future__ import annotations

NUM_WAITING_STEPS = 3
"""DDP reduces the whole model at once in its first step and rebuilds its buckets after it, or after the second one."""
NUM_PROFILER_WARM_UP_STEPS = 2
"""The first collectives after the profiler starts are transients."""
NUM_ACTIVE_STEPS = 8
NUM_IDLE_STEPS = NUM_WAITING_STEPS + NUM_PROFILER_WARM_UP_STEPS

_RECIPE = """\
import torch.distributed as dist
from torch.profiler import (
    ProfilerActivity, profile, schedule, tensorboard_trace_handler,
)

# On every rank, after init_process_group.
with profile(
    activities=[{activities}],
    schedule=schedule(wait={wait}, warmup={warmup}, active={active}, repeat=1),
    record_shapes=True,
    on_trace_ready=tensorboard_trace_handler(
        "traces", worker_name=f"rank{{dist.get_rank()}}", use_gzip=True
    ),
) as prof:
    for batch in loader:
        train_step(batch)
        prof.step()  # after every optimizer step, at least {steps} times
"""


def write_recipe(*, uses_gpu: bool) -> str:
    """The lines, with the GPU's events where there is one (ProfilerActivity.CUDA stands for ROCm, too)."""
    activities = ["ProfilerActivity.CPU"] + ["ProfilerActivity.CUDA"] * uses_gpu
    return _RECIPE.format(
        activities=", ".join(activities),
        wait=NUM_WAITING_STEPS,
        warmup=NUM_PROFILER_WARM_UP_STEPS,
        active=NUM_ACTIVE_STEPS,
        steps=NUM_IDLE_STEPS + NUM_ACTIVE_STEPS,
    )
