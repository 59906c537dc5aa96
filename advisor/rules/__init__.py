"""Speed advice: one file a rule, listed in RULES.

A rule reads the analysis and proposes a change of DDPConfig with its evidence, or nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from advisor.rules import bucket_cap
from advisor.schema import Recommendation
from advisor.verdict import Analysis

Rule = Callable[[Analysis], Recommendation | None]

RULES: tuple[Rule, ...] = (bucket_cap.propose,)
