"""How a failure reaches a person: one sentence on standard error and an exit code, never a traceback."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import NoReturn, ParamSpec

import typer

from advisor.errors import AdvisorError, UsageError

P = ParamSpec("P")

BAD_INPUT = 2
INTERRUPTED = 130
"""128 + SIGINT, as shells report it."""


def tell_failures(command: Callable[P, None]) -> Callable[P, None]:
    """Wraps a command so that what a person can act on is told in one sentence; anything else is a defect and shows."""

    @functools.wraps(command)
    def told(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except AdvisorError as error:
            _stop(str(error), error.exit_code)
        except BrokenPipeError:
            raise  # the reader of our output has gone: typer ends quietly
        except OSError as error:
            _stop(f"{error.filename or 'Reading or writing'}: {error.strerror or error}.", BAD_INPUT)
        except KeyboardInterrupt:
            _stop("interrupted.", INTERRUPTED)

    return told


def require(module: str, extra: str, purpose: str) -> None:
    """Checks that an optional dependency is installed, without importing it.

    Raises:
        UsageError: It is not; the sentence names the extra that brings it.
    """
    if importlib.util.find_spec(module) is None:
        raise UsageError(f"{purpose} needs {module}, which is not installed: pip install 'ddp-advisor[{extra}]'.")


def _stop(sentence: str, exit_code: int) -> NoReturn:
    typer.echo(f"error: {sentence}", err=True)
    raise typer.Exit(exit_code)
