"""How good a recording is: what `ddp-advisor doctor` found in the files, before anything is concluded from them."""

from __future__ import annotations

from advisor.schema.answers import Evidence, QualityNote
from advisor.schema.base import (
    SCHEMA_VERSION,
    DeviceType,
    FindingCode,
    FindingSeverity,
    Quality,
    StepSource,
    Struct,
)


class Finding(Struct, frozen=True, kw_only=True):
    """One thing that a recording lacks."""

    code: FindingCode
    severity: FindingSeverity
    message: str
    """What is so."""
    cost: str
    """What cannot be said because of it."""
    fix: str
    """How to record better, or what to do with these files."""
    ranks: tuple[int, ...] = ()
    """Where it is so; empty for the run as a whole."""
    evidence: tuple[Evidence, ...] = ()


class RecordedRank(Struct, frozen=True, kw_only=True):
    """What the files of one rank say of themselves, and how much is in them."""

    rank: int
    files: tuple[str, ...]
    """More than one where its schedule repeated: they are windows of one recording."""
    packing: str
    """`json`, `gzip` or `zstd`."""
    num_bytes: int
    """Of JSON text."""
    num_events: int
    """Of every kind."""
    num_kept_events: int
    """Of the kinds that the analysis reads."""
    world_size: int | None
    backend: str
    host: str | None
    device_type: DeviceType
    """Where kernels were recorded: `cpu` where none were."""
    devices: tuple[str, ...]
    versions: dict[str, str]
    """As the file spells them: schemaVersion, cuda_runtime_version, nccl_version and so on."""
    record_shapes: bool | None
    """None where the file does not say; so do the next two."""
    with_stack: bool | None
    profile_memory: bool | None
    clock_ns: int
    """1000 where all times are whole microseconds, else 1."""
    step_source: StepSource
    steps: tuple[int, ...]
    """Their numbers, those that the analysis leaves out included."""
    num_used_steps: int
    num_collectives: int
    num_sized_collectives: int
    """Those whose bytes are known."""


class RunDiagnosis(Struct, frozen=True, kw_only=True):
    """One run: what is there, what is missing, and how to record better."""

    source: str
    """What to give `analyze`."""
    quality: Quality
    world_size: int | None
    """As the files say; None where they do not."""
    ranks: tuple[RecordedRank, ...]
    missing_ranks: tuple[int, ...]
    torch_version: str | None = None
    """From the manifest: traces do not tell it."""
    findings: tuple[Finding, ...]
    """The worst first."""
    left_out: tuple[str, ...] = ()
    """A sentence for each file of this run that could not be read."""
    notes: tuple[QualityNote, ...] = ()
    recipe: str = ""
    """Lines to paste around the training loop; empty where recording again would not help."""


class Diagnosis(Struct, frozen=True, kw_only=True):
    """What `ddp-advisor doctor --json` prints."""

    schema_version: int = SCHEMA_VERSION
    tool_version: str
    source: str
    quality: Quality
    """That of the worst run."""
    runs: tuple[RunDiagnosis, ...]
    """Where no trace was found, one run without ranks says why."""
    left_out: tuple[str, ...] = ()
    """A sentence for each file that belongs to no run."""
