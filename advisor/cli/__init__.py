"""The command line: one file a command, and the one place where analysis meets workloads and reports.

A command imports what it runs inside its function, so that `--help` waits for neither pandas nor torch.
"""

from __future__ import annotations

from typing import Annotated

import typer

from advisor.cli import analyze, check, demo, doctor, estimate, forecast, probe, report, run, schema
from advisor.cli._failures import tell_failures

COMMANDS = (
    demo.demo,
    run.run,
    analyze.analyze,
    doctor.doctor,
    report.report,
    probe.probe,
    forecast.forecast,
    estimate.estimate,
    check.check,
    schema.schema,
)

app = typer.Typer(
    name="ddp-advisor",
    help="Says where the step time of a DistributedDataParallel run goes, and which settings would be faster.",
    epilog="Start with `ddp-advisor demo`, or with `ddp-advisor analyze FOLDER` and the traces of a run of your own.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        import advisor

        typer.echo(f"ddp-advisor {advisor.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, metavar="", help="Print the version.")
    ] = False,
) -> None:
    pass


for _command in COMMANDS:
    app.command()(tell_failures(_command))


def main() -> None:
    """The entry point of the `ddp-advisor` command."""
    app()
