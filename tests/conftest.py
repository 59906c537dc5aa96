"""Fixtures that are dear, made once a session, also where workers share its tests (`pytest -n 2`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gloo_pair import GlooPair

ROOT = Path(__file__).resolve().parent.parent


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Decides which worker gets which tests."""
    from tests.sharing import SharedFixtures

    return SharedFixtures(config, log)


@pytest.fixture(scope="session")
def gloo_pair() -> Iterator[GlooPair]:
    """Two gloo processes; `gloo_pair.run(function, …)` returns what each rank returned."""
    pair = GlooPair()
    yield pair
    pair.stop()


@pytest.fixture(scope="session")
def trace_corpus() -> Path:
    """The folder of real traces, which is not part of the repository."""
    folder = Path(os.environ.get("ADVISOR_TRACE_CORPUS", ROOT.parent / "shared" / "traces"))
    if not folder.is_dir():
        pytest.skip(f"no trace corpus at {folder}: set ADVISOR_TRACE_CORPUS to its folder")
    return folder
