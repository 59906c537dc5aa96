"""Every change that a rule may propose can be measured, or is left out for a reason."""

from __future__ import annotations

import pytest
from torch.nn.parallel import DistributedDataParallel

from advisor.cli.proof import is_measurable
from advisor.rules import RULES, Rule
from advisor.rules.guards import apply_change
from tests.unit.test_rules_contract import build_case
from workloads.ddp import BucketedDDP
from workloads.wrap import constructor_arguments


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_both_wrappers_take_it_as_an_arm(rule: Rule) -> None:
    analysis = build_case(rule.name)
    advice = rule.propose(analysis)
    assert advice is not None
    assert analysis.config is not None
    if not is_measurable(advice):
        assert not advice.change or advice.rule == "accumulation"
        return
    arm = apply_change(analysis.config, advice.change)
    assert arm != analysis.config
    for wrapper in (DistributedDataParallel, BucketedDDP):
        constructor_arguments(arm, wrapper)
