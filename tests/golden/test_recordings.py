"""docs/recordings.md lists every finding."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from advisor.schema import FindingCode

PAGE = Path(__file__).parent.parent.parent / "docs" / "recordings.md"


def test_every_finding_is_on_the_page() -> None:
    assert re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE) == list(get_args(FindingCode))
