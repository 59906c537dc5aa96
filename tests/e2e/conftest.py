"""One real run of the demo, dear enough to be shared by every test that needs a run folder."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Command = Callable[..., "subprocess.CompletedProcess[str]"]


def ddp_advisor(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs the command as a person does, in `cwd`."""
    command = [sys.executable, "-m", "advisor", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=400, check=False)


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The run folder that `demo` left, and what it printed."""
    folder = tmp_path_factory.mktemp("demo")
    done = ddp_advisor("demo", "--preset", "tiny", "--budget", "3", "--out", "run", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "run", done.stdout
