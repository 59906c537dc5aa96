"""What a person gets from `import advisor`, and what they do not have to install for it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import advisor

HEAVY = {"torch", "streamlit", "pandas", "hta", "plotly", "scipy", "numpy"}


def _modules_after(statement: str) -> set[str]:
    program = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(m.partition('.')[0] for m in sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("statement", ["import advisor", "import advisor.cli", "import advisor.schema"])
def test_the_light_parts_import_nothing_heavy(statement: str) -> None:
    assert not _modules_after(statement) & HEAVY


@pytest.mark.parametrize("statement", ["from advisor import analyze", "import reports"])
def test_reading_traces_needs_neither_torch_nor_a_page_nor_hta(statement: str) -> None:
    assert not _modules_after(statement) & {"torch", "streamlit", "hta"}


def test_the_public_names_are_these() -> None:
    assert advisor.__all__ == [
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


@pytest.mark.parametrize("name", advisor.__all__)
def test_every_public_name_loads(name: str) -> None:
    assert getattr(advisor, name) is not None


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'advisor' has no attribute 'analyse'"):
        _ = advisor.analyse
