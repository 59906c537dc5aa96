"""How workers share the tests (`pytest -n 2`)."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

FIXTURES = ("gloo_pair", "demo")
"""Dear ones, of which a session needs no second."""


class SharedFixtures(LoadScopeScheduling):
    """Gives a worker whole modules: all that use the same dear fixture, or one.

    They go in the order in which they are collected, so the many small ones, which even out, come last.
    """

    def __init__(self, config: pytest.Config, log: Any) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)
        self._root = config.rootpath

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.partition("::")[0]
        return _find_fixture(self._root / module) or module


@cache
def _find_fixture(module: Path) -> str | None:
    """The first dear fixture that a test of the module asks for."""
    text = module.read_text()
    return next((name for name in FIXTURES if f"{name}: " in text), None)
