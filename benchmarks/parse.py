"""Reading beside others: speed and memory on large traces made of real ones, all arms in one run and in turns.

Targets: 150 MB of JSON text a second and processor core from file to finished event table, 15 times as fast as HTA's
parser, with at most 30 % of its memory, which grows with the events that are kept and not with the file; the report of
8 ranks of 100 MB in less than 15 s.

Each arm runs in a process of its own, see `parse_arms.py`; json and orjson only decode, and make no table.
`PARSE_PARTS=gzip,analyze` measures only these parts and keeps what `results/parse.json` holds of the others. Traces and
traceinsight's environment stay in `PARSE_FOLDER`, by default below the folder for temporary files.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from advisor.statistics import median_estimate
from benchmarks.memory import watch_memory
from benchmarks.result import Measurement, read_measurements, write_result

MB = 1_000_000
MIB = 2**20
ROOT = Path(__file__).resolve().parent.parent
CORPUS = Path(os.environ.get("ADVISOR_TRACE_CORPUS", ROOT.parent / "shared" / "traces"))
FOLDER = Path(os.environ.get("PARSE_FOLDER", Path(tempfile.gettempdir()) / "ddp-advisor-parse"))
WITHOUT_STACKS = "a100-resnet50-ddp-rank0of2"
WITH_STACKS = "mi300-resnet-ddp-rank0of8"
"""Seven of ten of its events are Python functions, which are not kept."""
WITH_SHAPES = "gpt"
"""A workload that is recorded here: 390 bytes an event, where the runs of other people have 220 to 360."""
TRACEINSIGHT = ("traceinsight==0.6.1", "--no-deps")
BESIDE_TRACEINSIGHT = ("numpy", "pandas<3", "networkx", "plotly", "psutil", "pydot", "pyyaml")
"""What its parser needs of what it asks for."""
PACKAGES = ("ddp-advisor", "msgspec", "pandas", "numpy", "isal", "orjson", "HolisticTraceAnalysis")


@dataclass(frozen=True)
class Trial:
    """What is run how often."""

    arm: str
    paths: Sequence[Path]
    repeats: int


@dataclass(frozen=True)
class Sample:
    """One run of an arm."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    """Of its largest process; where it reads several files, of all its processes together, if that is more."""
    num_rows: int


def run() -> None:
    """Measures the parts that `PARSE_PARTS` names, else all."""
    chosen = [name for name in os.environ.get("PARSE_PARTS", ",".join(PARTS)).split(",") if name]
    unknown = set(chosen) - set(PARTS)
    if unknown:
        sys.exit(f"error: PARSE_PARTS names {min(unknown)!r}: choose of {', '.join(PARTS)}.")
    if not CORPUS.is_dir():
        sys.exit(f"error: There is no trace corpus at {CORPUS}: set ADVISOR_TRACE_CORPUS to its folder.")
    for part in chosen:
        load_before = os.getloadavg()[0]
        measured = PARTS[part]()
        kept = [row for row in read_measurements("parse") if not row.name.startswith(f"{part}: ")]
        rows = sorted([*kept, *measured], key=lambda row: list(PARTS).index(row.name.partition(":")[0]))
        write_result("parse", load_before, PACKAGES, rows)


# -------------------------------------------------------------------------------------------------------- the parts


def compare_on_a_file() -> list[Measurement]:
    """Every reader on 240 MB."""
    paths = make_traces(WITHOUT_STACKS, 240)
    repeats = {"ddp-advisor": 5, "json": 3, "orjson": 3, "hta": 2, "traceinsight": 1}
    return _compare("file", {arm: Trial(arm, paths, number) for arm, number in repeats.items() if _is_installed(arm)})


def compare_on_shapes() -> list[Measurement]:
    """Every reader on 240 MB that were recorded with shapes, as `ddp-advisor run` does."""
    repeats = {"ddp-advisor": 5, "orjson": 3, "hta": 2, "traceinsight": 1}
    paths = make_traces(WITH_SHAPES, 240)
    return _compare("shapes", {arm: Trial(arm, paths, number) for arm, number in repeats.items() if _is_installed(arm)})


def compare_on_ranks() -> list[Measurement]:
    """Every reader on 8 ranks of 100 MB; HTA and traceinsight read ranks in several processes, which they do best.

    Memory is that of all processes of a reader at one moment.
    """
    paths = make_traces(WITHOUT_STACKS, 100, num_ranks=8)
    repeats = {"ddp-advisor": 3, "json": 1, "orjson": 1, "hta": 1, "traceinsight": 1}
    return _compare("ranks", {arm: Trial(arm, paths, number) for arm, number in repeats.items() if _is_installed(arm)})


def measure_memory() -> list[Measurement]:
    """Our memory over the size of the file, without and with many events that are not kept."""
    sizes = ((WITHOUT_STACKS, 60), (WITHOUT_STACKS, 240), (WITHOUT_STACKS, 960), (WITH_STACKS, 960))
    trials = {
        f"{megabytes} MB{' with stacks' if source == WITH_STACKS else ''}": Trial(
            "ddp-advisor", make_traces(source, megabytes), 1
        )
        for source, megabytes in sizes
    }
    return _describe("memory", trials, take_turns(trials))


def compare_gzip() -> list[Measurement]:
    """The same file plain and compressed."""
    trials = {
        name: Trial("ddp-advisor", make_traces(WITHOUT_STACKS, 240, compress=name == "compressed"), 3)
        for name in ("plain", "compressed")
    }
    return _describe("gzip", trials, take_turns(trials))


def time_analysis() -> list[Measurement]:
    """The report of 8 ranks, read by two processes."""
    trial = Trial("analyze", make_traces(WITHOUT_STACKS, 100, num_ranks=8), 3)
    samples = take_turns({"analyze": trial})["analyze"]
    return [_measure("analyze: 8 ranks of 100 MB", "s", [sample.wall_s for sample in samples])]


PARTS = {
    "file": compare_on_a_file,
    "shapes": compare_on_shapes,
    "memory": measure_memory,
    "gzip": compare_gzip,
    "ranks": compare_on_ranks,
    "analyze": time_analysis,
}


# ---------------------------------------------------------------------------------------------- runs and their rows


def take_turns(trials: Mapping[str, Trial]) -> dict[str, list[Sample]]:
    """Runs the trials one after the other, again and again, so that a busy moment hits all of them."""
    samples: dict[str, list[Sample]] = {name: [] for name in trials}
    for turn in range(max(trial.repeats for trial in trials.values())):
        for name, trial in trials.items():
            if turn < trial.repeats:
                samples[name].append(_run_apart(trial))
                print(f"{name}: {samples[name][-1]}", flush=True)
    return samples


def _run_apart(trial: Trial) -> Sample:
    python = _locate_traceinsight() if trial.arm == "traceinsight" else Path(sys.executable)
    arms = Path(__file__).with_name("parse_arms.py")
    with (
        ThreadPoolExecutor(1) as beside,
        subprocess.Popen([python, arms, trial.arm, *trial.paths], stdout=subprocess.PIPE) as process,
    ):
        watching = beside.submit(watch_memory, process.pid) if len(trial.paths) > 1 else None
        output, _ = process.communicate()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    sample = Sample(**json.loads(output.splitlines()[-1]))
    return replace(sample, peak_bytes=max(sample.peak_bytes, watching.result())) if watching else sample


def _describe(part: str, trials: Mapping[str, Trial], samples: Mapping[str, Sequence[Sample]]) -> list[Measurement]:
    rows = []
    for name, taken in samples.items():
        megabytes = sum(map(_count_text, trials[name].paths)) / MB
        rows += [
            _measure(f"{part}: {name}, speed", "MB/s", [megabytes / sample.wall_s for sample in taken]),
            _measure(f"{part}: {name}, speed of a core", "MB/s", [megabytes / sample.cpu_s for sample in taken]),
            _measure(f"{part}: {name}, peak memory", "MiB", [sample.peak_bytes / MIB for sample in taken]),
            _measure(f"{part}: {name}, rows", "", [sample.num_rows for sample in taken]),
        ]
    return rows


def _compare(part: str, trials: Mapping[str, Trial]) -> list[Measurement]:
    """What each arm does, and the first one beside each of the others."""
    samples = take_turns(trials)
    rows = _describe(part, trials, samples)
    ours, *others = samples
    for other in others:
        pairs = [(mine, theirs) for mine in samples[ours] for theirs in samples[other]]
        name = f"{part}: {ours} beside {other}"
        rows += [
            _measure(f"{name}, times as fast", "", [theirs.wall_s / mine.wall_s for mine, theirs in pairs]),
            _measure(f"{name}, times as fast on a core", "", [theirs.cpu_s / mine.cpu_s for mine, theirs in pairs]),
            _measure(
                f"{name}, share of peak memory", "", [mine.peak_bytes / theirs.peak_bytes for mine, theirs in pairs]
            ),
        ]
    return rows


def _measure(name: str, unit: str, samples: Sequence[float]) -> Measurement:
    return Measurement(name=name, unit=unit, estimate=median_estimate(samples), num_samples=len(samples))


# ------------------------------------------------------------------------------------------- traces and environments


def make_traces(source: str, megabytes: int, *, num_ranks: int = 1, compress: bool = False) -> list[Path]:
    """Traces of this size, made where they are not there yet; by another process, whose memory is not ours."""
    folder = FOLDER / f"{source}-{num_ranks}x{megabytes}{'-gzip' if compress else ''}"
    if not folder.is_dir():
        unfinished = folder.with_name(f"{folder.name}-unfinished")
        recorded = _record(source) if source == WITH_SHAPES else CORPUS / source
        options = ["--ranks", str(num_ranks), "--mb", str(megabytes), *(["--gzip"] if compress else [])]
        _run_module("benchmarks.trace_generator", str(recorded), str(unfinished), *options)
        unfinished.rename(folder)
    return sorted(folder.iterdir())


def _record(workload: str) -> Path:
    """Trains it on two gloo ranks under the profiler; once."""
    folder = FOLDER / f"recorded-{workload}"
    if not folder.is_dir():
        _run_module("advisor", "run", workload, "--nproc", "2", "--device", "cpu", "--out", str(folder))
    return folder


def _run_module(*words: str) -> None:
    subprocess.run([sys.executable, "-m", *words], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)


def _count_text(path: Path) -> int:
    """Bytes of JSON text, which gzip notes at its end."""
    return int.from_bytes(path.read_bytes()[-4:], "little") if path.suffix == ".gz" else path.stat().st_size


def _is_installed(arm: str) -> bool:
    """Whether an arm can be run; traceinsight, which calls itself hta too, gets an environment of its own first."""
    if arm != "traceinsight" or _locate_traceinsight().exists():
        return True
    unfinished = FOLDER / "traceinsight-unfinished"
    try:
        subprocess.run([sys.executable, "-m", "venv", "--clear", unfinished], check=True)
        for packages in (TRACEINSIGHT, BESIDE_TRACEINSIGHT):
            subprocess.run([unfinished / "bin" / "python", "-m", "pip", "install", "-qq", *packages], check=True)
    except subprocess.CalledProcessError as error:
        print(f"traceinsight is left out, as it could not be installed: {error}.")
        return False
    unfinished.rename(FOLDER / "traceinsight")
    return True


def _locate_traceinsight() -> Path:
    return FOLDER / "traceinsight" / "bin" / "python"
