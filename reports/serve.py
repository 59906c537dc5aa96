"""Starting the Streamlit page."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from advisor.errors import UsageError

_HERE = Path(__file__).parent
_HOMES = (_HERE / "app.py", _HERE.parent / "app.py")
"""In a wheel `app.py` lies in this package, in a checkout beside it."""
_OPTIONS = {
    "--browser.gatherUsageStats": "false",
    "--server.showEmailPrompt": "false",
    "--server.address": "localhost",
    "--client.toolbarMode": "minimal",
}


def streamlit_command(run_folder: Path) -> list[str]:
    """The command that serves the page of `run_folder` on this machine only, asking and telling nobody anything.

    Raises:
        UsageError: Streamlit is not installed.
    """
    if find_spec("streamlit") is None:
        raise UsageError("The page needs streamlit, which is not installed: pip install 'ddp-advisor[app]'.")
    app = next(home for home in _HOMES if home.exists())
    options = [word for option in _OPTIONS.items() for word in option]
    return [sys.executable, "-m", "streamlit", "run", str(app), *options, "--", str(run_folder)]
