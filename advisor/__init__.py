"""Profiler traces of DistributedDataParallel runs in, advice out.

    report = advisor.analyze(["runs/gpt-20260101-120000"])
    print(report.verdict.message)

Every name loads what it needs when it is first used, so `import advisor` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from advisor.errors import AdvisorError
    from advisor.pipeline import analyze, what_if
    from advisor.schema import DDPConfig, Prediction, Recommendation, Report, RunManifest, Verdict, read_report

    __version__: str

__all__ = [
    "AdvisorError",
    "DDPConfig",
    "Prediction",
    "Recommendation",
    "Report",
    "RunManifest",
    "Verdict",
    "__version__",
    "analyze",
    "read_report",
    "what_if",
]

_HOMES = {"AdvisorError": "advisor.errors", "analyze": "advisor.pipeline", "what_if": "advisor.pipeline"}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("ddp-advisor")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "advisor.schema")), name)


def __dir__() -> list[str]:
    return sorted(__all__)
