"""Measurements of this project itself; `python -m benchmarks` runs them and writes `results/`."""
