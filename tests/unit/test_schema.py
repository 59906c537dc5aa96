"""Everything that is written can be read again, and a file from another time is read or refused in a sentence."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from advisor import schema
from advisor.errors import InputError, SchemaVersionError

STRUCTS = sorted(
    (kind for kind in vars(schema).values() if isinstance(kind, type) and issubclass(kind, schema.Struct)),
    key=lambda kind: kind.__name__,
)
SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(max_size=8),
    bool: st.booleans(),
    type(None): st.none(),
    Any: st.none() | st.booleans() | st.integers(0, 2**40) | st.text(max_size=4) | st.lists(st.booleans(), max_size=2),
}


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Values of any type that a field of a struct has."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in SCALARS:
        return SCALARS[hint]
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (Union, types.UnionType):
        return st.one_of(*map(values_of, arguments))
    if origin is tuple:
        return st.lists(values_of(arguments[0]), max_size=2).map(tuple)
    if origin is dict:
        return st.dictionaries(values_of(arguments[0]), values_of(arguments[1]), max_size=2)
    return st.builds(hint, **{name: values_of(field) for name, field in get_type_hints(hint).items()})


@pytest.mark.parametrize("kind", STRUCTS, ids=lambda kind: kind.__name__)
def test_json_brings_every_struct_back_as_it_was(kind: type[schema.Struct]) -> None:
    @settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(values_of(kind))
    def brings_back(value: schema.Struct) -> None:
        assert msgspec.json.decode(msgspec.json.encode(value), type=kind) == value

    brings_back()


@pytest.mark.parametrize("kind", STRUCTS, ids=lambda kind: kind.__name__)
def test_structs_cannot_be_changed(kind: type[schema.Struct]) -> None:
    assert kind.__struct_config__.frozen


CONFIG = schema.DDPConfig(world_size=2, backend="gloo", wrapper="torch", bucket_cap_mb=4.0)


def test_a_file_is_written_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    schema.write_json(CONFIG, path)
    assert schema.read_json(schema.DDPConfig, path) == CONFIG
    assert [file.name for file in tmp_path.iterdir()] == ["config.json"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.json"
    schema.write_json(CONFIG, path)
    before = path.read_bytes()

    def fill_the_disk(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fill_the_disk)
    with pytest.raises(OSError, match="No space left"):
        schema.write_json(CONFIG, path)
    assert [file.name for file in tmp_path.iterdir()] == ["config.json"]
    assert path.read_bytes() == before


def test_a_newer_file_is_refused_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text('{"schema_version": 99, "field_of_the_future": true}')
    with pytest.raises(SchemaVersionError, match=r"report\.json has schema version 99 .* upgrade ddp-advisor"):
        schema.read_json(schema.Report, path)


def test_fields_of_another_writer_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"world_size": 2, "backend": "gloo", "wrapper": "torch", "bucket_cap_mb": 4.0, "new": [1]}')
    assert schema.read_json(schema.DDPConfig, path) == CONFIG


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"world_size": "two"}'])
def test_what_is_no_such_file_is_refused_in_a_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"config\.json is not a DDPConfig of ddp-advisor"):
        schema.read_json(schema.DDPConfig, path)


def test_a_missing_report_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no report\.json: run `ddp-advisor analyze"):
        schema.read_report(tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        schema.read_report(tmp_path / "missing")
