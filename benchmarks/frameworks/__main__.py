"""Installs the frameworks, apart from this project, and runs each change's code on two gloo ranks.

Run as `python -m benchmarks.frameworks`. The environment stays in benchmarks/frameworks/.venv: remove that folder to
install anew.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal

import msgspec

from advisor.schema import Framework, Struct, read_json, write_json
from benchmarks.frameworks.cases import NEEDS_A_GPU, NUM_MICRO_STEPS, OTHERS, Case, Received, list_cases
from benchmarks.result import RESULTS

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
VENV = HERE / ".venv"
PACKAGES: dict[Framework, tuple[str, ...]] = {
    "accelerate": ("accelerate",),
    "hf-trainer": ("transformers", "accelerate"),
    "lightning": ("lightning",),
    "fabric": ("lightning",),
    "mmengine": ("mmengine",),
}
TIMEOUT_S = 900
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "ACCELERATE_USE_CPU": "true",
    # Lightning cannot tell how many ranks share a CPU.
    **{
        f"{prefix}_{name}": value
        for prefix in ("PL_TRAINER", "LT")
        for name, value in (("ACCELERATOR", "cpu"), ("DEVICES", "2"))
    },
    "PL_TRAINER_MAX_EPOCHS": "1",
    "PL_TRAINER_ENABLE_PROGRESS_BAR": "false",
}
Outcome = Literal["received", "differs", "failed", "needs a GPU", "not installed"]


class CaseResult(Struct, frozen=True, kw_only=True):
    """What became of one change in one framework."""

    name: str
    outcome: Outcome
    message: str = ""


class FrameworksResult(Struct, frozen=True, kw_only=True):
    """`results/frameworks.json`: whether each framework's DDP received what its code says, on every rank."""

    command: str
    machine: str
    versions: dict[str, str]
    not_installed: dict[str, str]
    """Per package, what pip said last."""
    results: dict[str, tuple[CaseResult, ...]]


def main() -> None:
    """Installs, runs, compares, writes the result; exits with 1 where anything differs or failed."""
    not_installed = install()
    results: dict[str, tuple[CaseResult, ...]] = {}
    for framework in OTHERS:
        missing = [package for package in PACKAGES[framework] if package in not_installed]
        results[framework] = skip_all(framework) if missing else check(framework)
        for each in results[framework]:
            print(f"{framework}: {each.name}: {each.outcome} {each.message}".rstrip(), flush=True)
    result = FrameworksResult(
        command="python -m benchmarks.frameworks",
        machine=f"{os.cpu_count()} cores, {platform.system()}",
        versions=read_versions(),
        not_installed=not_installed,
        results=results,
    )
    write_json(result, RESULTS / "frameworks.json")
    bad = [each for rows in results.values() for each in rows if each.outcome in ("differs", "failed")]
    sys.exit(f"{len(bad)} of the changes did not arrive." if bad else 0)


def install() -> dict[str, str]:
    """Makes the environment where it is missing; returns which packages could not be had, and why."""
    python = VENV / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
    failures = {}
    for package in sorted({package for packages in PACKAGES.values() for package in packages}):
        command: list[str | Path] = [
            python,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-compile",
            "-c",
            ROOT / "constraints.txt",
        ]
        # msgspec is all that our comm hooks need beside torch.
        done = subprocess.run([*command, "torch", "msgspec", package], capture_output=True, text=True, check=False)
        if done.returncode:
            failures[package] = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
    return failures


def check(framework: Framework) -> tuple[CaseResult, ...]:
    """Runs a framework's cases in one pair of processes and compares what DDP received."""
    cases = list_cases(framework)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "cases.json").write_bytes(msgspec.json.encode(cases))
        log = run_worker(framework, folder)
        results = [compare(case, number, folder, log) for number, case in enumerate(cases)]
    skipped = [CaseResult(name=name, outcome="needs a GPU") for owner, name in NEEDS_A_GPU if owner == framework]
    return (*results, *skipped)


def run_worker(framework: Framework, folder: Path) -> str:
    """Runs the two ranks; returns what they said last."""
    torchrun: list[str | Path] = [
        VENV / "bin" / "python",
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
    ]
    command = [*torchrun, HERE / "worker.py", framework, folder / "cases.json", folder]
    environment = os.environ | ENVIRONMENT | {"PYTHONPATH": str(ROOT)}
    log = folder / "log"
    with log.open("w") as out:
        try:
            subprocess.run(command, env=environment, stdout=out, stderr=out, timeout=TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            return f"not done after {TIMEOUT_S} s"
    lines = [line for line in log.read_text().splitlines() if "Error" in line]
    return lines[0].strip() if lines else "no error was told"


def compare(case: Case, number: int, folder: Path, log: str) -> CaseResult:
    """Compares what both ranks' DDP received with what the change says."""
    files = [folder / f"{number}.rank{rank}.json" for rank in range(2)]
    if not all(file.exists() for file in files):
        return CaseResult(name=case.name, outcome="failed", message=log)
    for file in files:
        received = read_json(Received, file)
        expected = case.expected
        pairs = {
            "limits": (received.limits, tuple(dict.fromkeys(expected.limits))),
            "hook": (received.hook.rpartition(".")[2], expected.hook),
            "synchronised": (received.synchronised[:NUM_MICRO_STEPS], expected.synchronised),
            **{name: (value, expected.settings[name]) for name, value in received.settings.items()},
        }
        wrong = [f"{name} is {had}, not {wanted}" for name, (had, wanted) in pairs.items() if had != wanted]
        if wrong:
            return CaseResult(name=case.name, outcome="differs", message="; ".join(wrong))
    return CaseResult(name=case.name, outcome="received")


def skip_all(framework: Framework) -> tuple[CaseResult, ...]:
    """Every case of a framework that could not be installed."""
    return tuple(CaseResult(name=case.name, outcome="not installed") for case in list_cases(framework))


def read_versions() -> dict[str, str]:
    """The versions in the environment."""
    names = ("torch", *sorted({package for packages in PACKAGES.values() for package in packages}))
    lines = subprocess.run([VENV / "bin" / "pip", "freeze"], capture_output=True, text=True, check=True).stdout
    frozen = dict(line.split("==", 1) for line in lines.splitlines() if "==" in line)
    return {"python": platform.python_version(), **{name: frozen[name] for name in names if name in frozen}}


main()
