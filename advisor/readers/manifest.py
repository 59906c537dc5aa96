"""The manifest beside the traces, where the recorder left one."""

from __future__ import annotations

from advisor.readers.locations import Location, open_stream
from advisor.schema import RunManifest
from advisor.schema.files import decode_json


def read_manifest(location: Location) -> RunManifest:
    """Reads a `manifest.json`, wherever it lies.

    Raises:
        InputError: It cannot be read, or is none.
    """
    with open_stream(location) as stream:
        return decode_json(RunManifest, stream.read(), location.name)
