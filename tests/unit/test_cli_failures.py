"""Every failure a person can act on is one sentence and an exit code; a defect keeps its traceback."""

from __future__ import annotations

import pytest
import typer

from advisor.cli._failures import require, tell_failures
from advisor.errors import CheckFailedError, InputError, RunError, UsageError


@pytest.mark.parametrize(
    ("failure", "exit_code", "sentence"),
    [
        (InputError("trace.json is empty: record it again."), 2, "trace.json is empty: record it again."),
        (RunError("Rank 1 died."), 2, "Rank 1 died."),
        (CheckFailedError("The run has 1 error alarm."), 1, "The run has 1 error alarm."),
        (OSError(28, "No space left on device", "/out/report.json"), 2, "/out/report.json: No space left on device."),
        (KeyboardInterrupt(), 130, "interrupted."),
    ],
)
def test_a_failure_is_one_sentence_on_standard_error(
    failure: BaseException, exit_code: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def command() -> None:
        raise failure

    with pytest.raises(typer.Exit) as exit_:
        tell_failures(command)()
    assert exit_.value.exit_code == exit_code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"error: {sentence}\n"


@pytest.mark.parametrize("defect", [KeyError("rank"), BrokenPipeError()])
def test_anything_else_is_not_swallowed(defect: Exception) -> None:
    def command() -> None:
        raise defect

    with pytest.raises(type(defect)):
        tell_failures(command)()


def test_a_missing_dependency_names_its_extra() -> None:
    require("json", "app", "report --serve")
    with pytest.raises(UsageError, match=r"demo needs no_such_torch, .*: pip install 'ddp-advisor\[workloads\]'"):
        require("no_such_torch", "workloads", "demo")
