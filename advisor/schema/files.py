"""The structs as files: JSON written whole or not at all, and read with a version check."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from advisor.errors import InputError, SchemaVersionError
from advisor.schema.answers import Prediction, Report
from advisor.schema.base import SCHEMA_VERSION, Struct
from advisor.schema.probe import Ladder
from advisor.schema.recording import Diagnosis
from advisor.schema.run import DDPConfig, RunManifest
from advisor.schema.sketch import JobEstimate

PUBLISHED: dict[str, type[Struct]] = {
    "report": Report,
    "manifest": RunManifest,
    "prediction": Prediction,
    "config": DDPConfig,
    "estimate": JobEstimate,
    "probe": Ladder,
    "diagnosis": Diagnosis,
}
"""The structs whose JSON schema `ddp-advisor schema NAME` prints."""

T = TypeVar("T", bound=Struct)


def encode_json(value: Struct) -> str:
    """`value` as indented JSON with a line break at its end."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"


def write_json(value: Struct, path: Path) -> None:
    """Writes `value` as indented JSON, whole or not at all (through a temporary file beside it)."""
    temporary = path.with_name(path.name + ".partial")
    try:
        temporary.write_bytes(encode_json(value).encode())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


class _Versioned(msgspec.Struct):
    schema_version: int = 1


def read_json(kind: type[T], path: Path) -> T:
    """Reads `kind` from `path`.

    Raises:
        SchemaVersionError: The file was written by a newer version.
        InputError: The file is missing, unreadable or not such a document.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}): check the path.") from error
    return decode_json(kind, data, str(path))


def decode_json(kind: type[T], data: bytes, name: str) -> T:
    """Decodes `kind` from the text of the file called `name`.

    Raises:
        SchemaVersionError: The file was written by a newer version.
        InputError: It is not such a document.
    """
    try:
        version = msgspec.json.decode(data, type=_Versioned).schema_version
        if version > SCHEMA_VERSION:
            raise SchemaVersionError(
                f"{name} has schema version {version} but this ddp-advisor knows {SCHEMA_VERSION}: "
                "upgrade ddp-advisor to read it."
            )
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(f"{name} is not a {kind.__name__} of ddp-advisor ({error}): write it again.") from error


def read_report(path: Path | str) -> Report:
    """Reads the report of a run folder, or a report file itself.

    Raises:
        SchemaVersionError: The file was written by a newer version.
        InputError: There is no report, or it is not one.
    """
    place = Path(path)
    file = place / "report.json" if place.is_dir() else place
    if place.exists() and not file.exists():
        raise InputError(f"{place} holds no report.json: run `ddp-advisor analyze {place}` first.")
    return read_json(Report, file)
