"""Every line of docs/dialects.md stands on a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.test_dialects import DIALECTS

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "dialects.md").read_text()
SECTIONS = [part.partition("\n")[2] for part in PAGE.split("\n## ")[1:]]


def list_rows(section: str) -> list[list[str]]:
    """The cells of a section's table, without its header."""
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def test_the_dialects_on_the_page_are_those_that_are_tested() -> None:
    assert [row[0] for row in list_rows(SECTIONS[0])] == list(DIALECTS)


@pytest.mark.parametrize("row", [row for section in SECTIONS[1:] for row in list_rows(section)], ids=lambda row: row[0])
def test_what_a_line_says_is_tested(row: list[str]) -> None:
    tested = re.findall(r"`(test_\w+)`", row[-1])
    assert tested
    sources = "\n".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name in tested if f"def {name}(" not in sources] == []
