"""Two places where training on several ranks goes quietly wrong: how losses are weighted, and what is done once a step.

DDP averages gradients over ranks with equal weights. So the mean of every rank's mean is the mean over all tokens only
where all ranks and micro-steps hold the same number of them. And whatever looks at the gradients as a whole (unscaling,
clipping, the optimizer) belongs after the last micro-step's backward, once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import nn


def loss_factors(weights: Sequence[float], device: torch.device, group: dist.ProcessGroup | None = None) -> list[float]:
    """What to multiply each micro-step's mean loss by, so that DDP's average is the mean over all tokens.

    factor_k = weight_k · world_size / Σ weights of all ranks and micro-steps. With a single micro-step on two ranks,
    2 tokens of mean gradient 1 and 6 of mean gradient 3, the factors are 0.5 and 1.5, and DDP averages 0.5 and 4.5 to
    the token mean, 2.5, instead of 2.0.

    Args:
        weights: The number of samples or tokens of each of this rank's micro-steps.
        device: Where the process group can communicate.
        group: The ranks that DDP averages over; None means all. Every one of them has to call.

    Returns:
        One factor a micro-step, without unit; all zero where no rank has any token.
    """
    total = torch.tensor(float(sum(weights)), dtype=torch.float64, device=device)
    dist.all_reduce(total, group=group)
    every = total.item()
    return [weight * dist.get_world_size(group) / every if every else 0.0 for weight in weights]


def finish_step(
    optimizer: torch.optim.Optimizer,
    parameters: Iterable[nn.Parameter],
    scaler: torch.amp.GradScaler,
    max_gradient_norm: float | None = None,
) -> None:
    """What ends an optimizer step, once its last backward has averaged the gradients.

    In this order: unscale, so that the norm is the real one; clip; step, which a scaler skips on every rank alike
    where the averaged gradients hold an inf or NaN; adapt the scale; forget the gradients.

    Args:
        optimizer: Over `parameters`.
        parameters: All that the norm is taken over.
        scaler: The one that scaled the losses; a disabled one does nothing.
        max_gradient_norm: The largest norm of all gradients together; None never clips.
    """
    if max_gradient_norm is not None:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(parameters, max_gradient_norm)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
