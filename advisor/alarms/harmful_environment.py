"""Environment variables that are meant for debugging or for another kind of job, and slow this one down."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from advisor.alarms._base import find_rows, list_all_places, list_steps
from advisor.schema import Alarm, Evidence, RunManifest
from advisor.verdict import Analysis


class Setting(NamedTuple):
    """A variable, when it harms and why; `source` says who tells."""

    variable: str
    harms: Callable[[str, RunManifest], bool]
    reason: str
    source: str


def _on_nccl(*values: str) -> Callable[[str, RunManifest], bool]:
    return lambda value, manifest: manifest.ddp.backend == "nccl" and value.upper() in values


def _on_gpu(value: str, manifest: RunManifest) -> bool:
    return value == "1" and any(device.device_type == "cuda" for device in manifest.devices)


def _takes_too_many_threads(value: str, manifest: RunManifest) -> bool:
    """Whether the ranks of a host together want more threads than it has cores."""
    num_ranks = Counter(device.host for device in manifest.devices)
    cores = {device.host: device.num_cores for device in manifest.devices if device.num_cores}
    return value.isdecimal() and any(num_ranks[host] * int(value) > num_cores for host, num_cores in cores.items())


TOO_MANY_THREADS = "makes the ranks of a host fight for its cores"
NCCL_GUIDE = "NCCL User Guide, Environment Variables"
SETTINGS: tuple[Setting, ...] = (
    Setting(
        "TORCH_NCCL_ENABLE_TIMING",
        _on_nccl("1"),
        "keeps collectives from running beside computation",
        "pytorch#143890",
    ),
    Setting(
        "TORCH_NCCL_BLOCKING_WAIT",
        _on_nccl("1"),
        "makes the host wait for every collective",
        "PyTorch, ProcessGroupNCCL Environment Variables",
    ),
    Setting("NCCL_DEBUG", _on_nccl("TRACE"), "writes a line for every call", NCCL_GUIDE),
    Setting("NCCL_P2P_DISABLE", _on_nccl("1"), "forbids direct copies between GPUs", NCCL_GUIDE),
    Setting("NCCL_SHM_DISABLE", _on_nccl("1"), "sends through the network inside a host", NCCL_GUIDE),
    Setting(
        "CUDA_LAUNCH_BLOCKING",
        _on_gpu,
        "makes the host wait for every kernel",
        "CUDA Programming Guide, CUDA Environment Variables",
    ),
    Setting(
        "CUDA_DEVICE_MAX_CONNECTIONS",
        _on_gpu,
        "leaves one queue for computation and communication",
        "CUDA Programming Guide, CUDA Environment Variables",
    ),
    Setting(
        "TORCH_DISTRIBUTED_DEBUG",
        lambda value, _: value.upper() == "DETAIL",
        "checks every collective with another one",
        "torch/distributed/distributed_c10d.py, _create_process_group_wrapper",
    ),
    Setting("OMP_NUM_THREADS", _takes_too_many_threads, TOO_MANY_THREADS, "torch/distributed/run.py"),
    Setting("MKL_NUM_THREADS", _takes_too_many_threads, TOO_MANY_THREADS, "torch/distributed/run.py"),
)


def list_harmful(manifest: RunManifest) -> list[tuple[Setting, str]]:
    """The variables that harm this run, and their values."""
    return [
        (setting, value)
        for setting in SETTINGS
        if (value := manifest.environment.get(setting.variable)) is not None and setting.harms(value, manifest)
    ]


def say_harm(found: Sequence[tuple[Setting, str]]) -> str:
    """What each of them does, and who tells."""
    return "; ".join(f"{setting.variable}={value} {setting.reason} ({setting.source})" for setting, value in found)


def check(analysis: Analysis) -> Alarm | None:
    """Raises the alarm where variables of `SETTINGS` harm this run; only a manifest tells the environment."""
    manifest = analysis.run.manifest
    if manifest is None or analysis.world_size == 1:
        return None
    found = list_harmful(manifest)
    if not found:
        return None
    places, ranks = list_all_places(analysis), tuple(rank.rank for rank in analysis.run.ranks)
    told = say_harm(found)
    names = [setting.variable for setting, _ in found]
    return Alarm(
        code="harmful_environment",
        severity="warning",
        message=f"The environment slows this run down: {told}.",
        fix=f"Unset {', '.join(names)} before training, or give fewer threads where those are too many.",
        code_fix=f"unset {' '.join(names)}",
        ranks=ranks,
        steps=list_steps(places),
        evidence=tuple(
            Evidence(
                name=f"{setting.variable}={value}",
                value=float(len(ranks)),
                unit="ranks",
                table="steps",
                rows=find_rows(analysis.steps, places),
            )
            for setting, value in found
        ),
    )
