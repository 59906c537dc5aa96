"""The example of docs/add-a-rule.md, run as it stands there."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import advisor.recommend
from advisor import rules
from advisor.rules import RULES, Rule
from advisor.schema import Verdict
from tests.advice_builders import build_advice_analysis
from tests.job_builders import MB, build_config, build_job, exactly

PAGE = Path(__file__).resolve().parents[2] / "docs" / "add-a-rule.md"


def test_the_example_is_a_rule_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """20 MB at 0.1 ns a byte in 16 bits save 1 ms, and casting them at 1 ns a byte costs 20."""
    file, line = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    module = ModuleType("advisor.rules.needless_hook")
    exec(compile(file, "needless_hook.py", "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    rule = eval(line, vars(rules))
    assert isinstance(rule, Rule)
    monkeypatch.setattr(advisor.recommend, "RULES", (*RULES, rule))

    job = build_job(
        [(10, 10 * MB), (20, 10 * MB)],
        backward_ms=20,
        beta_ns_per_byte=0.1,
        hook_ns_per_byte={"bf16": exactly(1.0)},  # type: ignore[arg-type]
    )
    analysis = build_advice_analysis(job, build_config(bucket_cap_mb=4.0, comm_hook="bf16"))
    advice = advisor.recommend.recommend(
        analysis, Verdict(code="bandwidth_bound", message="", evidence=(), ceiling_ns=None)
    )
    (found,) = [each for each in advice if each.rule == "needless_hook"]
    assert found.change == {"comm_hook": "none"}
    assert found.saving_ns is not None
    assert found.saving_ns.value > 0
