"""Mistakes that change what is trained or measured: one file an alarm, listed in ALARMS."""
