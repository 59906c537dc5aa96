"""The rules' advice, best first; silent where silence is right."""

from __future__ import annotations

from advisor.rules import RULES
from advisor.schema import Recommendation, Verdict, VerdictCode
from advisor.verdict import Analysis

MOST_RECOMMENDATIONS = 3
OPEN_TO_ADVICE: frozenset[VerdictCode] = frozenset({"latency_bound", "bandwidth_bound", "balanced"})
"""Where communication lengthens the step, so that DDP's settings can help."""


def recommend(analysis: Analysis, verdict: Verdict) -> tuple[Recommendation, ...]:
    """Runs the rules that the verdict lets speak, and ranks what they propose by its saving.

    Nothing is said while replay does not reproduce the measured step within its limit.
    """
    if verdict.code not in OPEN_TO_ADVICE or analysis.baseline is None or not analysis.baseline.trusted:
        return ()
    found = [recommendation for rule in RULES if (recommendation := rule(analysis)) is not None]
    return tuple(sorted(found, key=lambda r: r.saving_ns.value, reverse=True)[:MOST_RECOMMENDATIONS])
