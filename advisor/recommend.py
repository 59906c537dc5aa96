"""The rules' advice, best first; silent where silence is right.

Savings do not add up, so changes that risk nothing are replayed together and become one piece of advice, and every
change that risks something is replayed on top of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from advisor.rules import RULES, STRAGGLER, Risk
from advisor.rules.bench import Bench, Trial, measure_saving, open_bench
from advisor.rules.guards import GUARDS, apply_change, find_guard, find_torch_version
from advisor.rules.memory import list_memory
from advisor.rules.words import say_ms, say_value
from advisor.schema import Evidence, Recommendation, Verdict
from advisor.verdict import Analysis

MOST_RECOMMENDATIONS = 3
BUCKETS = frozenset({"bucket_cap_mb", "bucket_cap_mb_list"})
"""Fields that say the same thing in two ways, so that only one proposal may change them."""


class Proposal(NamedTuple):
    """What one rule, or several together, proposed."""

    risk: Risk
    advice: Recommendation

    @property
    def order(self) -> tuple[int, bool, float]:
        """The least risk first, what is quantified before what is not, then the largest saving."""
        saving = self.advice.saving_ns
        return self.risk, saving is None, -(saving.value if saving else self.advice.acts_on_ns or 0.0)


def recommend(analysis: Analysis, verdict: Verdict) -> tuple[Recommendation, ...]:
    """Asks the rules that may speak under the verdict, merges what goes together, and ranks the rest.

    Nothing but a straggler's name is said while replay does not reproduce the measured step within its limit.
    """
    may_speak = [rule for rule in RULES if verdict.code in rule.verdicts]
    if verdict.code not in STRAGGLER and (analysis.baseline is None or not analysis.baseline.trusted):
        return ()
    asked = [(rule.risk, rule.propose(analysis)) for rule in may_speak]
    proposals = [Proposal(risk, advice) for risk, advice in asked if advice is not None and _is_safe(analysis, advice)]
    bench = open_bench(analysis)
    if bench is not None:
        proposals = _replay_together(bench, proposals)
    ranked = sorted(proposals, key=lambda proposal: proposal.order)[:MOST_RECOMMENDATIONS]
    return tuple(_add_memory(analysis, _bound(proposal.advice)) for proposal in ranked)


def _is_safe(analysis: Analysis, advice: Recommendation) -> bool:
    """Whether no guard stands in the way of the change."""
    if not advice.change:
        return True
    assert analysis.config is not None, "a change is a change of known settings"
    known = advice.change.keys() <= GUARDS.keys()
    return known and find_guard(analysis.config, advice.change, find_torch_version(analysis.run.manifest)) is None


def _replay_together(bench: Bench, proposals: Sequence[Proposal]) -> list[Proposal]:
    """The changes without risk as one, as far as each adds to it; then the others as they do on top of it."""
    today = bench.today
    replayed = [p for p in proposals if p.advice.prediction is not None]
    rest = [p for p in proposals if p.advice.prediction is None]
    chosen: list[Recommendation] = []
    change: dict[str, Any] = {}
    reached = today
    for proposal in sorted((p for p in replayed if p.risk == Risk.NONE), key=lambda p: p.order):
        merged = change | proposal.advice.change
        if _clash(change, proposal.advice.change) or bench.find_guard(merged) is not None:
            continue
        trial = bench.try_change(merged)
        if bench.matters(measure_saving(reached, trial)):
            chosen.append(proposal.advice)
            change, reached = merged, trial
    kept = [Proposal(Risk.NONE, _merge(bench, chosen, (today, reached)))] if chosen else []
    kept += [
        Proposal(risk, on_top)
        for risk, advice in replayed
        if risk != Risk.NONE and (on_top := _put_on_top(bench, advice, change, reached)) is not None
    ]
    return [*kept, *rest]


def _clash(change: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return bool(change.keys() & other.keys()) or bool(BUCKETS & change.keys() and BUCKETS & other.keys())


def _merge(bench: Bench, chosen: Sequence[Recommendation], trials: tuple[Trial, Trial]) -> Recommendation:
    """Several proposals as one piece of advice, with what they save together."""
    if len(chosen) == 1:
        return chosen[0]
    today, reached = trials
    saving = measure_saving(today, reached)
    change = {name: value for advice in chosen for name, value in advice.change.items()}
    named = " and ".join(f"{name}={say_value(name, value)}" for name, value in change.items() if value is not None)
    apart = ", ".join(f"{say_ms(advice.saving_ns.value)} by {advice.rule}" for advice in chosen if advice.saving_ns)
    return Recommendation(
        rule=" + ".join(advice.rule for advice in chosen),
        title=f"Set {named}",
        message=(
            f"Together these changes save {say_ms(saving.value)} a step (alone {apart}), because they act on the same "
            "time in part. Set them all and measure them beside today's setting before you keep them."
        ),
        change=change,
        saving_ns=saving,
        status="predicted",
        evidence=tuple(dict.fromkeys(evidence for advice in chosen for evidence in advice.evidence)),
        caveats=tuple(dict.fromkeys(caveat for advice in chosen for caveat in advice.caveats)),
        sources=tuple(dict.fromkeys(source for advice in chosen for source in advice.sources)),
        prediction=bench.predict(reached.config),
        acts_on_ns=bench.communication_ns,
        equally_good={name: values for advice in chosen for name, values in advice.equally_good.items()},
    )


def _put_on_top(
    bench: Bench, advice: Recommendation, change: Mapping[str, Any], reached: Trial
) -> Recommendation | None:
    """A riskier piece of advice with what it adds to the changes without risk; None where that is nothing.

    What saves nothing by itself was proposed for another reason, and stays.
    """
    if not change or advice.saving_ns is None or not bench.matters(advice.saving_ns):
        return advice
    merged = {**change, **advice.change}
    if bench.find_guard(merged) is not None:
        return advice
    trial = bench.try_config(apply_change(bench.config, merged))
    more = measure_saving(reached, trial)
    if not bench.matters(more):
        return None
    together = measure_saving(bench.today, trial).value / 1e6
    evidence = Evidence(name="saved together with the first advice", value=together, unit="ms")
    return replace(advice, evidence=(*advice.evidence, evidence))


def _bound(advice: Recommendation) -> Recommendation:
    """The advice with an interval of its saving that ends at the time that it acts on.

    The saving itself is what the advice says and shows, and is never changed: a rule counts all that it acts on.
    """
    saving, most = advice.saving_ns, advice.acts_on_ns
    if saving is None or most is None or saving.high <= most:
        return advice
    return replace(advice, saving_ns=replace(saving, high=max(saving.value, most)))


def _add_memory(analysis: Analysis, advice: Recommendation) -> Recommendation:
    """The advice with the memory that a rank needs under it."""
    if not advice.change or analysis.job is None or analysis.config is None:
        return advice
    target = apply_change(analysis.config, advice.change)
    memory = list_memory(analysis.job.profile, analysis.config, target)
    return replace(advice, evidence=(*advice.evidence, *memory))
