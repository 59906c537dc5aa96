"""Trace files in, `Trace` out."""
