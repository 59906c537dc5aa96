"""What is concluded: verdict, predictions, recommendations, alarms and the report that holds them."""

from __future__ import annotations

from typing import Any, Literal

from advisor.schema.base import (
    SCHEMA_VERSION,
    AlarmCode,
    Estimate,
    Parallelism,
    RecommendationStatus,
    Severity,
    Struct,
    VerdictCode,
)
from advisor.schema.forecast import Forecast
from advisor.schema.holistic import Holistic
from advisor.schema.measured import (
    BucketContents,
    BucketSummary,
    CollectiveSummary,
    RankSummary,
    StepSummary,
    Straggler,
)
from advisor.schema.models import Calibration, CommModel, Interference, StepProfile
from advisor.schema.run import DDPConfig, RunManifest


class Evidence(Struct, frozen=True, kw_only=True):
    """One number that decides, with the threshold it is judged by where there is one."""

    name: str
    value: float | None
    """None where nobody knows."""
    unit: str
    low: float | None = None
    high: float | None = None
    """95 % from `low` to `high`, where a model tells the value."""
    threshold: float | None = None
    table: str | None = None
    """The table of the report that shows it, with `rows` as indices into it."""
    rows: tuple[int, ...] = ()


class Verdict(Struct, frozen=True, kw_only=True):
    """What holds the step back."""

    code: VerdictCode
    message: str
    evidence: tuple[Evidence, ...]
    ceiling_ns: Estimate | None
    """The replayed step with free communication."""
    observed_ceiling_ns: Estimate | None = None
    """The observed step minus what blocked it."""


class BucketSpan(Struct, frozen=True, kw_only=True):
    """One bucket in a replayed schedule; times relative to the start of the synchronising backward."""

    bucket: int
    num_bytes: int
    ready_ns: int
    start_ns: int
    end_ns: int


class WaterfallTerm(Struct, frozen=True, kw_only=True):
    """One term between the naive alpha-beta step and the measured one."""

    name: str
    value_ns: float


class Prediction(Struct, frozen=True, kw_only=True):
    """What the step would take under `config`; per optimizer step."""

    config: DDPConfig
    step_ns: Estimate
    blocking_ns: Estimate
    exposed_ns: Estimate
    buckets: tuple[BucketSpan, ...]
    waterfall: tuple[WaterfallTerm, ...] = ()
    assumed: tuple[str, ...] = ()
    """What this setting takes for granted beyond the calibration's own assumptions, which hold for every setting."""


class Recommendation(Struct, frozen=True, kw_only=True):
    """A change of DDPConfig (only the fields that differ; empty for advice outside DDP), and what it saves.

    `message` is two sentences: why, and what next.
    """

    rule: str
    title: str
    message: str
    change: dict[str, Any]
    saving_ns: Estimate | None
    """A step of today's samples; None where nothing tells how much of what the change acts on would go."""
    status: RecommendationStatus
    evidence: tuple[Evidence, ...]
    caveats: tuple[str, ...]
    sources: tuple[str, ...]
    prediction: Prediction | None = None
    acts_on_ns: float | None = None
    """The time of a step that the change acts on, so the most that it can save."""
    equally_good: dict[str, tuple[float, ...]] = {}
    """Per changed field, the values whose predictions cannot be told from the best."""
    code: dict[str, str] = {}
    """Per `Framework`, the code to paste; written where the report is put together."""


class Alarm(Struct, frozen=True, kw_only=True):
    """A mistake that changes what is trained or measured; correctness before speed."""

    code: AlarmCode
    severity: Severity
    message: str
    """What is wrong, in one sentence."""
    fix: str
    """What to do, in one sentence."""
    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    evidence: tuple[Evidence, ...]
    code_fix: str = ""
    """What to do as code, where that is short."""


class Baseline(Struct, frozen=True, kw_only=True):
    """How well replay reproduces the measured step; speed advice needs error <= limit."""

    measured_ns: Estimate
    replayed_ns: Estimate
    error_fraction: float
    noise_floor_fraction: float | None
    """None where one step alone was measured."""
    limit_fraction: float

    @property
    def trusted(self) -> bool:
        """Whether the replay is close enough to give speed advice."""
        return abs(self.error_fraction) <= self.limit_fraction


class QualityNote(Struct, frozen=True, kw_only=True):
    """Something missing, repaired or assumed while reading, and what it costs."""

    message: str
    file: str | None = None
    left_out: bool = False
    """Whether it is about files that could not be read and of which the report knows nothing."""


class SweepArm(Struct, frozen=True, kw_only=True):
    """One measured setting; the ratio is to the first arm (today's setting)."""

    name: str
    config: DDPConfig
    predicted_ns: Estimate | None
    step_ns: Estimate | None
    ratio: Estimate | None
    num_steps: int
    outcome: Literal["faster", "slower", "tie", "reference", "failed"]
    message: str = ""


class Sweep(Struct, frozen=True, kw_only=True):
    """A measured comparison; predictions were frozen (and hashed) before the first measurement."""

    arms: tuple[SweepArm, ...]
    noise_floor_fraction: float
    tie_fraction: float
    num_blocks: int
    steps_per_block: int
    predictions_sha256: str


class Report(Struct, frozen=True, kw_only=True):
    """`report.json`: the whole answer, enough for every page and for what-ifs without the traces."""

    schema_version: int = SCHEMA_VERSION
    tool_version: str
    created: str
    source: str
    manifest: RunManifest | None
    config: DDPConfig | None
    """The profiled setting as far as it is known: from the manifest, else guessed from the buckets."""
    assumed_settings: tuple[str, ...] = ()
    """Fields of `config` that decide what is sent and that nothing tells, so that they are DDP's defaults."""
    notes: tuple[QualityNote, ...]
    verdict: Verdict
    alarms: tuple[Alarm, ...]
    baseline: Baseline | None
    recommendations: tuple[Recommendation, ...]
    next_measurement: str = ""
    """The cheapest measurement that would settle what is uncertain, as a sentence; empty where nothing would."""
    step_profile: StepProfile | None
    calibration: Calibration | None
    comm_models: tuple[CommModel, ...]
    steps: tuple[StepSummary, ...]
    buckets: tuple[BucketSummary, ...]
    collectives: tuple[CollectiveSummary, ...]
    ranks: tuple[RankSummary, ...]
    parallelism: Parallelism = "unknown"
    """How the job trains on several ranks, as far as the traces tell it."""
    bucket_contents: tuple[BucketContents, ...] = ()
    """In launch order; empty where neither a manifest nor the gradients' sizes tell."""
    straggler: Straggler | None = None
    interference: Interference | None = None
    """None where no work ran both beside communication and without any."""
    sweep: Sweep | None = None
    today: Prediction | None = None
    """The profiled setting replayed, with the waterfall from a naive step to the measured one; None where nothing can
    be replayed."""
    forecast: Forecast | None = None
    """None where replay does not reproduce the step, a rank is missing, or latency is unknown."""
    holistic: Holistic | None = None
    """None where HolisticTraceAnalysis was not to be asked."""
