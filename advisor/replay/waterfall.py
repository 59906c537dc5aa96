"""From a naive step to the predicted or measured one, term by term: what each mechanism of an exchange costs or saves.

Every level is the step with one mechanism more, and a term is the difference between two levels:

    one after the other          a mean rank's computation, then alpha + beta · bytes for each bucket, nothing hidden
    waiting for the slowest rank the computation that the exchange waits for instead of the mean rank's
    hidden beside backward       each bucket starts when it is ready, on a link of its own
    queueing for the link        as many as the backend has in flight, on one link
    slowing each other down      computation and communication side by side
    launching                    the host's time for each bucket
    casting, compressing         the computation of a hook that casts, or of PowerSGD
    copying out                  averages back into the gradients
    host launching late          a GPU has to wait for what follows backward
    not explained                up to the step that was measured, or that a known residual corrects to

Levels are whole nanoseconds, so that the terms add up exactly.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from advisor.replay.backward import Backward, replay_backward
from advisor.replay.buckets import WIRE_BYTES, plan_backward, sends_nothing
from advisor.replay.scenarios import Job, Scenario, free_communication
from advisor.schema import DDPConfig, RankProfile, WaterfallTerm

NAIVE = "one after the other"
UNEXPLAINED = "not explained"


def explain_step(job: Job, config: DDPConfig, scenario: Scenario, final_ns: float) -> tuple[WaterfallTerm, ...]:
    """The terms between the naive step and `final_ns`, in ns; the first one is the naive step itself.

    Args:
        job: Profile, calibration and communication model of the profiled run.
        config: The setting.
        scenario: The numbers to replay with.
        final_ns: The measured step, or the predicted one.
    """
    central = free_communication(scenario) if sends_nothing(config) else scenario
    levels = [*_list_levels(job, config, central), (UNEXPLAINED, final_ns)]
    rounded = [0, *(round(level) for _, level in levels)]
    terms = tuple(
        WaterfallTerm(name=name, value_ns=float(after - before))
        for (name, _), (before, after) in zip(levels, pairwise(rounded), strict=True)
    )
    assert sum(term.value_ns for term in terms) == round(final_ns)
    return terms


def sum_around(job: Job, rank: RankProfile, micro_steps: int) -> float:
    """All of an optimizer step but its last backward and exchange, in ns.

    Each micro-step loads its own data and has its share of what has no name. Where K of them share the one exchange
    that K₀ had in the profile, all K / K₀ - 1 exchanges that are left out copy nothing into buckets.
    """
    more = micro_steps / job.profile.num_micro_steps
    around = more * (rank.data_ns + rank.other_ns) + rank.optimizer_ns
    computed = micro_steps * rank.forward_ns + (micro_steps - 1) * rank.backward_ns
    copied = sum_copies_in(job, rank) if more != 1 else 0.0  # the usual case is asked often
    return around + computed - (more - 1) * copied


def sum_copies_in(job: Job, rank: RankProfile) -> float:
    """What copying the gradients into their buckets takes in one exchange, in ns."""
    return job.calibration.copy_in_ns_per_byte.value * sum(gradient.num_bytes for gradient in rank.gradients)


def _list_levels(job: Job, config: DDPConfig, central: Scenario) -> Iterator[tuple[str, float]]:
    profile, micro_steps = job.profile, config.accumulation_steps
    around = sum_around(job, profile.slowest, micro_steps)
    full = plan_backward(job, config)
    transfers = float(full.time_alone(central).sum())
    alone = [sum_around(job, rank, micro_steps) + rank.backward_ns for rank in profile.ranks or (profile.slowest,)]
    yield NAIVE, float(np.mean(alone)) + transfers
    yield "waiting for the slowest rank", around + profile.slowest.backward_ns + transfers

    def replay(backward: Backward, scenario: Scenario) -> float:
        return around + replay_backward(backward, scenario).finish_end

    own_link = dataclasses.replace(full, concurrency=max(1, len(full.sizes)))
    scenario = Scenario(
        central.alpha_ns, central.beta_ns_per_byte, 1.0, 1.0, 0.0, 0.0, central.kinks, two_in_flight=1.0
    )
    yield "hidden beside backward", replay(own_link, scenario)
    scenario = dataclasses.replace(scenario, two_in_flight=central.two_in_flight)
    yield "queueing for the link", replay(full, scenario)
    scenario = dataclasses.replace(
        scenario,
        compute_slowdown=central.compute_slowdown,
        communication_slowdown=central.communication_slowdown,
    )
    yield "slowing each other down", replay(full, scenario)
    scenario = dataclasses.replace(scenario, launch_ns=central.launch_ns)
    yield "launching", replay(full, scenario)
    if config.comm_hook in WIRE_BYTES or full.chains:
        scenario = dataclasses.replace(
            scenario, hook_ns_per_byte=central.hook_ns_per_byte, hook_ns_per_matrix=central.hook_ns_per_matrix
        )
        yield "compressing" if full.chains else "casting", replay(full, scenario)
    yield "copying out", replay(full, central)
    run = replay_backward(full, central)
    yield "host launching late", around + max(run.finish_end, run.compute_end + job.calibration.host_tail_ns.value)
