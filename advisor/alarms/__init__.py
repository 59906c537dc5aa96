"""Mistakes that change what is trained or measured: one file an alarm, listed in ALARMS."""

from __future__ import annotations

from collections.abc import Callable

from advisor.alarms import no_communication
from advisor.schema import Alarm
from advisor.verdict import Analysis

AlarmCheck = Callable[[Analysis], Alarm | None]

ALARMS: tuple[AlarmCheck, ...] = (no_communication.check,)
