"""The cheapest measurement that would settle what is uncertain, as one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from advisor.replay import rebuilds
from advisor.rules import EXCHANGE
from advisor.rules.bench import Bench, measure_saving, open_bench
from advisor.rules.caps import rank_candidates
from advisor.rules.words import say_ms, say_value
from advisor.schema import Recommendation, Verdict
from advisor.verdict import Analysis

SMALLER = 4
"""A second profile with buckets smaller by this factor tells latency from bandwidth."""


def suggest_measurement(analysis: Analysis, verdict: Verdict, advice: Sequence[Recommendation]) -> str:
    """What to measure next; empty where nothing is uncertain, or where speed is not the question.

    A second size of buckets comes before all else where latency is unknown. Then the change that is advised first (but
    not more micro-steps, which train otherwise), and where none is, the cap that may matter although it is not sure to.
    """
    bench = open_bench(analysis)
    if bench is None or verdict.code not in EXCHANGE or analysis.baseline is None or not analysis.baseline.trusted:
        return ""
    if not bench.job.model.latency_known:
        return _ask_for_another_size(bench)
    changes = [each.change for each in advice if each.change and "accumulation_steps" not in each.change]
    if changes:
        named = ", ".join(f"{name} {say_value(name, value)}" for name, value in changes[0].items() if value is not None)
        return (
            f"Measure {named} next: it is the advice that risks least, and today's setting beside it tells the noise."
        )
    return _ask_for_a_cap(bench) if rebuilds(bench.config) else ""


def _ask_for_another_size(bench: Bench) -> str:
    num_bytes = sum(gradient.num_bytes for gradient in bench.job.profile.slowest.gradients)
    today_mib = num_bytes / max(1, bench.try_config(bench.config, central=True).num_buckets) / 2**20
    return (
        f"Profile bucket_cap_mb {today_mib / SMALLER:.2g} MiB next: today's buckets have too few sizes to tell latency "
        "from bandwidth, and smaller ones would."
    )


def _ask_for_a_cap(bench: Bench) -> str:
    """The cap that may save most, which is never more than free communication would."""
    today, *others = rank_candidates(bench)
    savings = [(measure_saving(today, trial), trial) for trial in others]
    saving, trial = max(savings, key=lambda pair: pair[0].high, default=(None, today))
    free = bench.try_config(replace(bench.config, comm_hook="noop"), central=True)
    most_ns = float(today.steps_ns[0] - free.steps_ns[0])
    if saving is None or min(saving.high, most_ns) <= bench.indifference_ns:
        return ""
    named = say_value("bucket_cap_mb", trial.config.bucket_cap_mb)
    return (
        f"Measure bucket_cap_mb {named} next: it may save up to {say_ms(min(saving.high, most_ns))} a step, but below "
        f"{say_ms(bench.indifference_ns)} nobody could tell it from today's, and it is not sure to save that."
    )
