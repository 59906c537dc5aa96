"""The ladder that `ddp-advisor probe` measured: beside the traces of a run, or a file of its own."""

from __future__ import annotations

from advisor.readers.locations import Location, open_stream
from advisor.schema import Ladder
from advisor.schema.files import decode_json


def read_probe(location: Location) -> Ladder:
    """Reads a `probe.json`, wherever it lies.

    Raises:
        InputError: It cannot be read, or is none.
    """
    with open_stream(location) as stream:
        return decode_json(Ladder, stream.read(), location.name)
