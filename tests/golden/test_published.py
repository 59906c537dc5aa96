"""What is published must not change unnoticed: older files stay readable, formats and options documented."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from typer.testing import CliRunner

from advisor.cli import app
from advisor.schema import PUBLISHED, RunManifest, read_json, read_report

HERE = Path(__file__).parent
DOCS = HERE.parent.parent / "docs"
STORED = [("report-1.json", "report"), ("manifest-1.json", "manifest")]


def test_a_stored_report_of_version_1_stays_readable() -> None:
    report = read_report(HERE / "report-1.json")
    assert (report.schema_version, report.verdict.code) == (1, "bandwidth_bound")
    assert report.config is not None
    assert report.config.bucket_cap_mb is None
    assert report.recommendations[0].change == {"bucket_cap_mb": 8.0}
    assert report.recommendations[0].status == "confirmed"
    assert report.sweep is not None
    assert [arm.outcome for arm in report.sweep.arms] == ["reference", "tie", "faster", "slower", "failed"]
    assert report.comm_models[0].predict(2**20).value > 0


def test_a_stored_manifest_of_version_1_stays_readable() -> None:
    manifest = read_json(RunManifest, HERE / "manifest-1.json")
    assert (manifest.schema_version, manifest.workload, manifest.ddp.world_size) == (1, "mlp", 2)
    assert [bucket.num_bytes for bucket in manifest.buckets] == [1050624, 2048]
    assert [parameter.bucket for parameter in manifest.parameters] == [0, 0, 1]


@pytest.mark.parametrize(("file", "name"), STORED)
def test_a_stored_file_fits_its_published_schema(file: str, name: str) -> None:
    schema = json.loads((DOCS / "schema" / f"{name}.json").read_text())
    jsonschema.validate(json.loads((HERE / file).read_text()), schema)


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_schema_is_the_one_of_the_code(name: str) -> None:
    printed = CliRunner().invoke(app, ["schema", name]).stdout
    assert (DOCS / "schema" / f"{name}.json").read_text() == printed, "the format changed: run `make docs` and look why"


def test_the_documented_commands_are_those_of_the_code() -> None:
    command = [sys.executable, "-m", "typer", "advisor.cli", "utils", "docs", "--name", "ddp-advisor"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert (DOCS / "commands.md").read_text().strip() == printed.strip(), "the options changed: run `make docs`"


def test_every_number_of_a_report_is_explained() -> None:
    sections = {text.split("\n", 1)[0]: text for text in (DOCS / "numbers.md").read_text().split("\n## ")}
    structs = json.loads((DOCS / "schema" / "report.json").read_text())["$defs"]
    missing = [
        f"{struct}.{field}"
        for struct, schema in structs.items()
        for field, kind in schema.get("properties", {}).items()
        if holds_number(kind) and f"`{field}`" not in sections.get(struct, "")
    ]
    assert missing == []


def holds_number(kind: object) -> bool:
    """Whether a field of the schema is a number, an estimate, or holds some."""
    if isinstance(kind, dict):
        is_estimate = kind.get("$ref", "").endswith("/Estimate")
        return is_estimate or kind.get("type") in ("number", "integer") or any(map(holds_number, kind.values()))
    return isinstance(kind, list) and any(map(holds_number, kind))


def test_what_is_explained_exists() -> None:
    structs = json.loads((DOCS / "schema" / "report.json").read_text())["$defs"]
    headings = re.findall(r"^## (\w+)$", (DOCS / "numbers.md").read_text(), re.MULTILINE)
    assert [heading for heading in headings if heading not in structs] == []
