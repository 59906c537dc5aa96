"""What can go wrong, as one tree; the command line turns each into one sentence and its exit code.

AdvisorError                 exit 2   anything a person can act on
├── UsageError               exit 2   an option or argument that cannot be meant
├── InputError               exit 2   a path, file or folder that cannot be read as what it should be
│   ├── MixedRanksError      exit 2   a file that holds more than one recording
│   └── SchemaVersionError   exit 2   a file written by a newer version than this one
├── RunError                 exit 2   a training process that failed, hung or could not be started
└── CheckFailedError         exit 1   a check that a person asked for said no
"""

from __future__ import annotations

from typing import ClassVar


class AdvisorError(Exception):
    """A failure told in one sentence: what is wrong, in which file, what to do."""

    exit_code: ClassVar[int] = 2


class UsageError(AdvisorError):
    """An option or argument that cannot be meant."""


class InputError(AdvisorError):
    """A path, file or folder that cannot be read as what it should be."""


class MixedRanksError(InputError):
    """A file that holds more than one recording, as when several ranks write into it."""


class SchemaVersionError(InputError):
    """A file written by a newer version than this one."""


class RunError(AdvisorError):
    """A training process that failed, hung or could not be started."""


class CheckFailedError(AdvisorError):
    """A check that a person asked for said no."""

    exit_code: ClassVar[int] = 1
