"""What a person types next."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

NAME = "ddp-advisor"


def spell_command(*arguments: str | Path) -> str:
    """The command line that runs this program with `arguments` from here, whether the shell finds it by name or not."""
    started_as = Path(sys.argv[0])
    found = shutil.which(NAME) is not None or started_as.name != NAME
    program = NAME if found else os.path.relpath(started_as)
    return shlex.join([program, *map(str, arguments)])
