"""Speed advice: one file a rule, listed in RULES with the verdicts under which it may speak and what it risks.

A rule reads the analysis and returns a recommendation, or None where it has nothing certain to say. What it proposes is
checked against `guards` and replayed together with other proposals (`recommend`). To add one: docs/add-a-rule.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from importlib import import_module

from advisor.schema import Recommendation, VerdictCode
from advisor.verdict import Analysis

Verdicts = frozenset[VerdictCode]
EXCHANGE: Verdicts = frozenset({"latency_bound", "bandwidth_bound", "balanced"})
"""Communication lengthens the step, so that DDP's settings can help."""
HIDDEN: Verdicts = frozenset({"compute_bound"})
HOST: Verdicts = frozenset({"host_bound"})
INPUT: Verdicts = frozenset({"input_bound"})
STRAGGLER: Verdicts = frozenset({"straggler"})


class Risk(IntEnum):
    """What a change may do besides saving time; the lower, the sooner it is proposed."""

    NONE = 0
    """Training stays as it is, up to the order in which sums are added."""
    CONDITION = 1
    """Right only where the model fulfils a condition."""
    NUMERICS = 2
    """Gradients lose digits."""
    TRAINING = 3
    """The optimizer sees other batches."""


@dataclass(frozen=True)
class Rule:
    """One rule: the module of this package whose `propose(analysis)` is asked."""

    name: str
    verdicts: Verdicts
    risk: Risk

    def propose(self, analysis: Analysis) -> Recommendation | None:
        """What the rule has to say."""
        found: Recommendation | None = import_module(f"{__name__}.{self.name}").propose(analysis)
        return found


RULES: tuple[Rule, ...] = (
    Rule("bucket_cap", EXCHANGE, Risk.NONE),
    Rule("first_bucket", EXCHANGE, Risk.NONE),
    Rule("bucket_list", EXCHANGE, Risk.NONE),
    Rule("gradient_as_bucket_view", EXCHANGE | HOST, Risk.NONE),
    Rule("batched_grad_copy", HOST, Risk.NONE),
    Rule("parameter_order", EXCHANGE, Risk.NONE),
    Rule("indivisible_tail", EXCHANGE, Risk.NONE),
    Rule("slow_link", EXCHANGE, Risk.NONE),
    Rule("straggler", STRAGGLER, Risk.NONE),
    Rule("host_bound", HOST, Risk.NONE),
    Rule("input_bound", INPUT, Risk.NONE),
    Rule("find_unused_parameters", EXCHANGE | HIDDEN, Risk.CONDITION),
    Rule("static_graph", EXCHANGE, Risk.CONDITION),
    Rule("forward_sync_buffers", EXCHANGE | HIDDEN, Risk.CONDITION),
    Rule("channels", EXCHANGE | HIDDEN, Risk.CONDITION),
    Rule("sixteen_bit_hook", EXCHANGE, Risk.NUMERICS),
    Rule("powersgd", EXCHANGE, Risk.NUMERICS),
    Rule("accumulation", EXCHANGE, Risk.TRAINING),
)
