"""How long a person waits for the command line: a cold process each time, beside an empty Python process."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from advisor.statistics import median_estimate
from benchmarks.result import Measurement, write_result

NUM_SAMPLES = 15
COMMANDS = {
    "an empty python process": ["-c", "pass"],
    "import advisor": ["-c", "import advisor"],
    "ddp-advisor --help": ["-m", "advisor", "--help"],
    "from advisor import analyze": ["-c", "from advisor import analyze"],
}


def run() -> None:
    """Measures each command in turns, so that a busy moment hits all of them."""
    load_before = os.getloadavg()[0]
    samples_s: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(NUM_SAMPLES):
        for name, arguments in COMMANDS.items():
            started = time.perf_counter()
            subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
            samples_s[name].append(time.perf_counter() - started)
    measurements = [
        Measurement(name=name, unit="s", estimate=median_estimate(samples), num_samples=NUM_SAMPLES)
        for name, samples in samples_s.items()
    ]
    write_result("start_up", load_before, ("ddp-advisor", "typer", "rich", "msgspec", "pandas", "scipy"), measurements)
