"""What a setting keeps on every rank beside the activations, with Adam as the optimizer.

**Source**: Rajbhandari et al., ZeRO (2020), section 3.1; torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py
(the error that each step leaves over is kept, as much as the gradients).
"""

from __future__ import annotations

from collections import Counter

from advisor.estimate import ITEM_BYTES, count_memory
from advisor.schema import DDPConfig, Evidence, JobSketch, StepProfile


def list_memory(profile: StepProfile, today: DDPConfig, target: DDPConfig) -> tuple[Evidence, ...]:
    """The memory of a rank under a setting, and today's where that differs."""
    before, after = estimate_memory_bytes(profile, today), estimate_memory_bytes(profile, target)
    if not after:
        return ()
    name = "memory of a rank, with Adam and without activations"
    shown = (Evidence(name=name, value=after, unit="bytes"),)
    return shown if before == after else (Evidence(name=f"{name}, today", value=before, unit="bytes"), *shown)


def estimate_memory_bytes(profile: StepProfile, config: DDPConfig) -> int:
    """Weights, gradients, Adam's state, DDP's buckets and what the comm hook keeps; 0 where no gradient is known."""
    num_bytes: Counter[str] = Counter()
    for gradient in profile.slowest.gradients:
        num_bytes[gradient.dtype] += gradient.num_bytes
    total = 0
    for dtype, size in num_bytes.items():
        if dtype not in ITEM_BYTES:
            return 0
        sketch = JobSketch(
            layer_parameters=(size // ITEM_BYTES[dtype],), dtype=dtype, backward_ns=0, bandwidth_bytes_per_s=1.0
        )
        memory = count_memory(sketch)
        total += memory.weights_bytes + memory.gradients_bytes + memory.optimizer_bytes
        total += 0 if config.gradient_as_bucket_view else memory.buckets_bytes
        total += memory.gradients_bytes if config.comm_hook.startswith("powersgd") else 0
    return total
