"""One training loop for every job: optimizer steps with accumulation, under either wrapper."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from itertools import count, islice
from typing import Any

import torch

from advisor.errors import UsageError
from advisor.schema import DDPConfig
from workloads.gradients import finish_step, loss_factors
from workloads.job import Job
from workloads.place import Place
from workloads.wrap import compile_in_place, wrap


class Training:
    """A job under a wrapper, one optimizer step at a time.

    Attributes:
        model: The wrapped model.
        optimizer: Over the wrapped model's parameters.
        num_steps: Optimizer steps done.
    """

    def __init__(self, job: Job, config: DDPConfig, place: Place) -> None:
        _check_unused(job, config)
        self.job = job
        self.config = config
        self.model = wrap(job.model, config, place.device)
        self.optimizer = job.optimizer(self.model.parameters())
        self.num_steps = 0
        self._device = place.device
        self._scaler = torch.amp.GradScaler(place.device.type, enabled=job.scales_loss)
        self._batches = iterate_batches(job, place.rank)
        if job.compiles:
            compile_in_place(self.model, config)

    def step(self) -> torch.Tensor:
        """One optimizer step over `accumulation_steps` batches; returns this rank's loss, weighted, detached."""
        loss = self.backward()
        finish_step(self.optimizer, self.model.parameters(), self._scaler, self.job.max_gradient_norm)
        self.num_steps += 1
        return loss

    def backward(self) -> torch.Tensor:
        """All micro-steps' forward and backward, after which the gradients are averaged; returns as `step`."""
        batches, factors = self._weigh(islice(self._batches, self.config.accumulation_steps))
        losses = [
            self._backward(batch, factor, synchronises=self._synchronises(micro_step))
            for micro_step, (batch, factor) in enumerate(zip(batches, factors, strict=True))
        ]
        return torch.stack(losses).sum()

    def _weigh(self, batches: Iterable[Any]) -> tuple[Iterable[Any], list[float]]:
        """The micro-steps' batches, and what to multiply their losses by; weights need all batches beforehand."""
        if self.job.weight is None:
            return batches, [1 / self.config.accumulation_steps] * self.config.accumulation_steps
        batches = list(batches)
        return batches, loss_factors([self.job.weight(batch) for batch in batches], self._device)

    def _backward(self, batch: Any, factor: float, *, synchronises: bool) -> torch.Tensor:
        # no_sync is decided at forward, so it goes around forward and backward.
        with nullcontext() if synchronises else self.model.no_sync():  # type: ignore[operator]
            loss = self.job.loss(self.model, batch) * factor
            torch.autograd.backward(self._scaler.scale(loss))
        return loss.detach()

    def _synchronises(self, micro_step: int) -> bool:
        is_last = micro_step == self.config.accumulation_steps - 1
        # torch fails when a static graph's very first backward does not synchronise (pytorch#143580); synchronising a
        # micro-step too many leaves the sum of averages as it is.
        return is_last or (self.config.static_graph and self.num_steps == 0)


def _check_unused(job: Job, config: DDPConfig) -> None:
    if job.leaves_parameters_unused and not config.find_unused_parameters:
        raise UsageError(
            "This job leaves parameters without a gradient on some steps, which DDP waits for in vain: "
            "set find_unused_parameters."
        )


def iterate_batches(job: Job, rank: int) -> Iterator[Any]:
    """This rank's batches without end.

    Raises:
        UsageError: The job's iterable of batches is empty.
    """
    if callable(job.batches):
        for micro_step in count():
            yield job.batches(rank, micro_step)
    else:
        yield from _repeat(job.batches)


def _repeat(batches: Iterable[Any]) -> Iterator[Any]:
    end = object()
    while (first := next(epoch := iter(batches), end)) is not end:
        yield first
        yield from epoch
    raise UsageError("The job's batches are used up: give it a list, a DataLoader or batches(rank, micro_step).")
