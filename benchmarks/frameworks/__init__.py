"""The code for other people's frameworks, run in an environment that has them: `python -m benchmarks.frameworks`."""
