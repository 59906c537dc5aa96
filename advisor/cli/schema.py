"""`ddp-advisor schema`: the published formats."""

from __future__ import annotations

from typing import Annotated

import typer

from advisor.errors import UsageError

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="One of report, manifest, prediction, config, estimate, probe, diagnosis."),
    ],
) -> None:
    """Print the JSON schema of a file this tool writes."""
    import json

    import msgspec

    from advisor.schema import PUBLISHED

    if name not in PUBLISHED:
        raise UsageError(f"There is no schema named {name!r}: choose one of {', '.join(PUBLISHED)}.")
    typer.echo(json.dumps({"$schema": DIALECT, **msgspec.json.schema(PUBLISHED[name])}, indent=2))
