"""The manifest beside the traces, where the recorder left one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from advisor.schema import RunManifest, read_json


def read_manifest(folders: Sequence[Path]) -> RunManifest | None:
    """Reads `manifest.json` from the only folder of a run; several folders have no manifest in common.

    Raises:
        InputError: There is one but it cannot be read.
    """
    if len(folders) != 1:
        return None
    path = folders[0] / "manifest.json"
    return read_json(RunManifest, path) if path.exists() else None
