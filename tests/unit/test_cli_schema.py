"""`ddp-advisor schema` prints valid JSON schemas of exactly the published files."""

from __future__ import annotations

import json

import jsonschema
import pytest
from typer.testing import CliRunner

from advisor.cli import app
from advisor.schema import PUBLISHED


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_schema_is_a_json_schema(name: str) -> None:
    result = CliRunner().invoke(app, ["schema", name])
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    jsonschema.validators.validator_for(document).check_schema(document)
    assert document["$ref"] == f"#/$defs/{PUBLISHED[name].__name__}"


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    result = CliRunner().invoke(app, ["schema", "trace"])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == (
        "error: There is no schema named 'trace': choose one of report, manifest, prediction, config, estimate, "
        "probe, diagnosis.\n"
    )
