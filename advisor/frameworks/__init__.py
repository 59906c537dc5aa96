"""A recommendation as code to paste: one file a framework, listed in FRAMEWORKS.

A writer takes the change with every setting before and after, and returns the code whole where order matters. What a
framework has no argument for, its code works around, and a comment says so. Names the code uses and does not make
(model, optimizer, loader, …) are the reader's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from advisor.errors import UsageError
from advisor.frameworks import accelerate, fabric, hf_trainer, lightning, mmengine, torch_ddp
from advisor.frameworks.change import Change, plan_change
from advisor.frameworks.lines import Snippet
from advisor.schema import DDPConfig, Framework, Recommendation, Report

FRAMEWORKS: dict[Framework, Callable[[Change], Snippet]] = {
    "torch": torch_ddp.write,
    "hf-trainer": hf_trainer.write,
    "accelerate": accelerate.write,
    "lightning": lightning.write,
    "fabric": fabric.write,
    "mmengine": mmengine.write,
}


def write_code(change: Mapping[str, Any], config: DDPConfig, framework: Framework) -> str:
    """Writes the code that makes a change.

    Args:
        change: The fields of DDPConfig that differ, with their new values.
        config: Today's settings.
        framework: One of `FRAMEWORKS`.

    Returns:
        Python source for torch 2.4 or newer; empty where nothing changes.

    Raises:
        UsageError: There is no such framework, or the change is none of DDP's settings.
    """
    if framework not in FRAMEWORKS:
        raise UsageError(f"There is no code for {framework!r}: choose of {', '.join(FRAMEWORKS)}.")
    planned = plan_change(change, config)
    if not planned.fields:
        return ""
    header = f"Changes {', '.join(planned.fields)}; other arguments are today's as far as the traces tell."
    return FRAMEWORKS[framework](planned).render(header)


def add_code(report: Report) -> Report:
    """The report with code for every framework beside each recommendation that changes a setting."""
    if report.config is None:
        return report
    return msgspec.structs.replace(
        report, recommendations=tuple(_add_code(each, report.config) for each in report.recommendations)
    )


def _add_code(recommendation: Recommendation, config: DDPConfig) -> Recommendation:
    if not recommendation.change:
        return recommendation
    code = {str(framework): write_code(recommendation.change, config, framework) for framework in FRAMEWORKS}
    return msgspec.structs.replace(recommendation, code=code)
