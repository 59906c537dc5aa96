"""Arms in turns, inside one set of processes: what every rank of a sweep does.

Each arm has its own copy of the model. A round visits every arm once, in an order shuffled anew with the same seed on
all ranks; a visit is a few steps of which the first is discarded. So whatever the machine does for a while happens to
all arms alike.
"""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from advisor.schema import DDPConfig
from workloads.exchange import Reporter
from workloads.factories import build_job
from workloads.job import Job, JobContext
from workloads.place import Place, agree, settle_config
from workloads.requests import SweepRequest
from workloads.sweep_store import State, SweepStore
from workloads.train import Training
from workloads.wrap import num_settling_steps

MIN_ROUNDS = 3
"""Below this there is no interval; measured whatever the budget says."""


def measure_in_turns(request: SweepRequest, place: Place, reporter: Reporter) -> None:
    """Warms up every arm that has not failed before, then visits them in rounds until the budget is used."""
    job = build_job(JobContext(request.job, place.rank, place.world_size, place.device))
    with SweepStore(Path(request.database)) if place.rank == 0 else nullcontext() as store:
        log = _Log(request, reporter, store)
        positions, first_round = agree((log.positions(), log.next_round()))
        trainings = {}
        for position in positions:
            on_step = partial(log.begin, position, "warming")
            trainings[position] = _warm_up(job, request.arms[position].config, place, on_step)
            log.end(position)
        round_index, round_s = first_round, 0.0
        while agree(round_index < first_round + MIN_ROUNDS or log.leaves(round_s)):
            round_started = time.monotonic()
            for position in _shuffled(positions, round_index):
                log.begin(position, "measuring")
                durations_ns = _visit(trainings[position], request.steps_per_visit, place)
                log.end(position, round_index, durations_ns)
            round_index, round_s = round_index + 1, time.monotonic() - round_started


class _Log:
    """What rank 0 stores and tells; on every other rank it does nothing."""

    def __init__(self, request: SweepRequest, reporter: Reporter, store: SweepStore | None) -> None:
        self._request = request
        self._reporter = reporter
        self._store = store
        self._started = time.monotonic()

    def positions(self) -> list[int]:
        """The arms to measure."""
        return self._store.positions("waiting", "warming", "ready", "measuring") if self._store else []

    def next_round(self) -> int:
        """Where a resumed sweep goes on."""
        return self._store.next_round() if self._store else 0

    def leaves(self, seconds: float) -> bool:
        """Whether the budget leaves this much time."""
        return time.monotonic() - self._started + seconds <= self._request.budget_s

    def begin(self, position: int, state: State) -> None:
        """Says which arm is to blame from now on if a process dies."""
        if self._store:
            self._store.set_state(position, state)
            budget_s = round(self._request.budget_s)
            elapsed_s = min(budget_s, round(time.monotonic() - self._started))
            self._reporter.report(elapsed_s, budget_s, f"{state} {self._request.arms[position].name}")

    def end(self, position: int, round_index: int = 0, durations_ns: Sequence[Sequence[int]] = ()) -> None:
        """Stores a visit where there was one."""
        if self._store:
            self._store.add_visit(position, round_index, durations_ns)
            self._store.set_state(position, "ready")


def _warm_up(job: Job, config: DDPConfig, place: Place, on_step: Callable[[], None]) -> Training:
    on_step()
    training = Training(replace(job, model=copy.deepcopy(job.model)), settle_config(config, place), place)
    for _ in range(num_settling_steps(config)):
        training.step()
        on_step()
    dist.barrier()
    return training


def _visit(training: Training, num_steps: int, place: Place) -> list[list[int]]:
    """The durations of `num_steps` steps on every rank, in ns."""
    durations_ns = []
    dist.barrier()
    for _ in range(num_steps):
        started_ns = time.perf_counter_ns()
        training.step()
        if place.device.type == "cuda":
            torch.cuda.synchronize(place.device)
        durations_ns.append(time.perf_counter_ns() - started_ns)
    mine = torch.tensor(durations_ns, device=place.device if place.backend == "nccl" else "cpu")
    every = [torch.empty_like(mine) for _ in range(place.world_size)]
    dist.all_gather(every, mine)
    return [rank_durations.tolist() for rank_durations in every]


def _shuffled(positions: Sequence[int], round_index: int) -> list[int]:
    return random.Random(round_index).sample(positions, len(positions))
