"""Everything that is written to disk or crosses a process: one struct a concept, and nothing computed.

Integer nanoseconds and bytes are measured; an `Estimate` of the same unit is a statistic or a model's answer, as a
float with its interval. Suffixes carry the unit: `_ns`, `_bytes`, `_fraction`, `_ns_per_byte`. Times of a step are
relative to that step's start. The files of a run folder are a `RunManifest` and a `Report`; both carry a
`schema_version`, older ones stay readable, and `read_json` refuses newer ones in a sentence.
"""

from advisor.schema.answers import (
    Alarm,
    Baseline,
    BucketSpan,
    Evidence,
    Prediction,
    QualityNote,
    Recommendation,
    Report,
    Sweep,
    SweepArm,
    Verdict,
    WaterfallTerm,
)
from advisor.schema.base import (
    SCHEMA_VERSION,
    AlarmCode,
    Backend,
    Basis,
    CollectiveRole,
    DeviceType,
    Estimate,
    Phase,
    RecommendationStatus,
    Severity,
    Struct,
    VerdictCode,
    Wrapper,
)
from advisor.schema.files import (
    PUBLISHED,
    read_json,
    read_report,
    write_json,
)
from advisor.schema.measured import (
    BucketSummary,
    CollectiveSummary,
    RankSummary,
    StepSummary,
)
from advisor.schema.models import (
    Calibration,
    CommModel,
    CommSample,
    CommSegment,
    GradientReady,
    RankProfile,
    StepProfile,
)
from advisor.schema.run import (
    BucketInfo,
    DDPConfig,
    DeviceInfo,
    ParameterInfo,
    RunManifest,
)

__all__ = [
    "PUBLISHED",
    "SCHEMA_VERSION",
    "Alarm",
    "AlarmCode",
    "Backend",
    "Baseline",
    "Basis",
    "BucketInfo",
    "BucketSpan",
    "BucketSummary",
    "Calibration",
    "CollectiveRole",
    "CollectiveSummary",
    "CommModel",
    "CommSample",
    "CommSegment",
    "DDPConfig",
    "DeviceInfo",
    "DeviceType",
    "Estimate",
    "Evidence",
    "GradientReady",
    "ParameterInfo",
    "Phase",
    "Prediction",
    "QualityNote",
    "RankProfile",
    "RankSummary",
    "Recommendation",
    "RecommendationStatus",
    "Report",
    "RunManifest",
    "Severity",
    "StepProfile",
    "StepSummary",
    "Struct",
    "Sweep",
    "SweepArm",
    "Verdict",
    "VerdictCode",
    "WaterfallTerm",
    "Wrapper",
    "read_json",
    "read_report",
    "write_json",
]
