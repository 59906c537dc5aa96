"""Small Reports with round numbers, so that what a page must show can be worked out in the head.

`gloo_report`: 2 ranks x 4 steps x 5 buckets, bandwidth-bound, one recommendation. Step s takes 180, 181, 182, 184 ms.
`a100_report`: rank 0 of 2, host-bound, nothing blocks, no recommendation.
`swept_report`: the first with a measured sweep. `hostile_report`: that with dangerous names.
"""

from __future__ import annotations

from typing import Any

import msgspec

from advisor.schema import (
    Baseline,
    Basis,
    BucketSummary,
    Calibration,
    CollectiveSummary,
    CommModel,
    CommSample,
    CommSegment,
    DDPConfig,
    DeviceInfo,
    Estimate,
    Evidence,
    Forecast,
    ForecastRow,
    Prediction,
    QualityNote,
    RankSummary,
    Recommendation,
    Report,
    RunManifest,
    StepSummary,
    Sweep,
    SweepArm,
    Verdict,
    WaterfallTerm,
)

MS = 1_000_000
MIB = 2**20
GLOO_CONFIG = DDPConfig(world_size=2, backend="gloo", wrapper="torch")
GLOO_JITTER_MS = (0, 1, 2, 4)
GLOO_BUCKETS_MS = ((60, 60, 62), (80, 80, 102), (100, 102, 124), (120, 124, 146), (140, 146, 168))
"""For each bucket of a step without jitter: ready, start and end; backward's compute ends at 140."""
A100_ELEMENTS = (2_049_000, 7_875_584, 6_563_840, 6_637_568, 2_431_040)


def estimate(value: float, spread: float = 0.0, basis: Basis = "fitted") -> Estimate:
    return Estimate(value=value, low=value - spread, high=value + spread, basis=basis)


def estimate_ms(value: float, spread: float = 0.0, basis: Basis = "fitted") -> Estimate:
    return estimate(value * MS, spread * MS, basis)


def step_summary(rank: int = 0, step: int = 0, **parts_ms: float) -> StepSummary:
    """A step whose duration is the sum of the six parts given in ms."""
    parts = {
        f"{name}_ns": int(parts_ms.get(name, 0) * MS)
        for name in ("data", "forward", "backward", "blocking", "optimizer", "other")
    }
    backward_start = parts["data_ns"] + parts["forward_ns"]
    return StepSummary(
        rank=rank,
        step=step,
        start_ns=step * 200 * MS,
        duration_ns=sum(parts.values()),
        **parts,
        compute_ns=int(parts_ms.get("compute", 140) * MS),
        communication_ns=int(parts_ms.get("communication", 90) * MS),
        overlap_ns=int(parts_ms.get("overlap", 62) * MS),
        exposed_ns=int(parts_ms.get("exposed", 28) * MS),
        host_bound_ns=int(parts_ms.get("host_bound", 0) * MS),
        num_syncs=1,
        backward_start_ns=backward_start,
        backward_end_ns=backward_start + parts["backward_ns"],
    )


def bucket_summary(**fields: Any) -> BucketSummary:
    """A bucket of 25 MiB, ready at 100 and running from 110 to 130 ms; fields named `*_ms` are given in ms."""
    values: dict[str, Any] = {
        "rank": 0, "step": 0, "bucket": 0, "num_bytes": 25 * MIB, "num_elements": 25 * MIB // 4, "dtype": "float32",
        "ready_host_ns": 100 * MS, "ready_device_ns": None, "launch_ns": 101 * MS,
        "start_ns": 110 * MS, "end_ns": 130 * MS, "queue_wait_ns": 9 * MS, "peer_wait_ns": 1 * MS,
        "transfer_ns": 19 * MS, "exposed_ns": 8 * MS, "blocking_ns": 5 * MS,
    }  # fmt: skip
    for name, value in fields.items():
        values[f"{name[:-3]}_ns" if name.endswith("_ms") else name] = int(value * MS) if name.endswith("_ms") else value
    return BucketSummary(**values)


def gloo_steps() -> tuple[StepSummary, ...]:
    return tuple(
        step_summary(
            rank, step, data=2 + rank, forward=50 - rank, backward=88, blocking=28 + jitter, optimizer=10, other=2
        )
        for rank in range(2)
        for step, jitter in enumerate(GLOO_JITTER_MS)
    )


def gloo_buckets() -> tuple[BucketSummary, ...]:
    """Blocking: 6 ms in bucket 3 (140 to 146) and 22 ms in bucket 4, plus the jitter of the step."""
    return tuple(
        bucket_summary(
            rank=rank, step=step, bucket=bucket,
            num_bytes=(1 if bucket == 0 else 25) * MIB, num_elements=(1 if bucket == 0 else 25) * MIB // 4,
            ready_host_ms=ready, launch_ms=ready, start_ms=start, end_ms=end + (jitter if bucket == 4 else 0),
            queue_wait_ms=start - ready, peer_wait_ms=0, transfer_ms=end - start + (jitter if bucket == 4 else 0),
            exposed_ms=(0, 0, 0, 6, 22 + jitter)[bucket], blocking_ms=(0, 0, 0, 6, 22 + jitter)[bucket],
        )
        for rank in range(2)
        for step, jitter in enumerate(GLOO_JITTER_MS)
        for bucket, (ready, start, end) in enumerate(GLOO_BUCKETS_MS)
    )  # fmt: skip


def today() -> Prediction:
    """200 ms naively: 12 ms of waiting for the slowest rank, 40 hidden, 10 of copies; 181.5 ms were measured."""
    terms = {
        "one after the other": 200,
        "waiting for the slowest rank": 12,
        "hidden beside backward": -40,
        "launching": 0,
    }
    terms |= {"copying out": 10, "not explained": -0.5}
    return Prediction(
        config=GLOO_CONFIG,
        step_ns=estimate_ms(182, 3),
        blocking_ns=estimate_ms(28),
        exposed_ns=estimate_ms(28),
        buckets=(),
        waterfall=tuple(WaterfallTerm(name=name, value_ns=value * MS) for name, value in terms.items()),
    )


def comm_model(sizes_mib: tuple[float, ...] = (1, 1, 25, 25, 25)) -> CommModel:
    """1 ms + 1 ns a byte, with every sample 2 % above the line."""
    sizes = [int(size * MIB) for size in sizes_mib]
    return CommModel(
        complete=True,
        process_group="0",
        kind="all_reduce",
        dtype="float32",
        world_size=2,
        segments=(
            CommSegment(
                alpha_ns=estimate_ms(1, 0.2), beta_ns_per_byte=estimate(1.0, 0.05), from_bytes=0, to_bytes=None
            ),
        ),
        samples=tuple(
            CommSample(num_bytes=size, transfer_ns=int(1.02 * (MS + size)), step=step)
            for step, size in enumerate(sizes)
        ),
        latency_known=True,
        message="One line fits all samples within 2 %.",
    )


def recommendation(**overrides: Any) -> Recommendation:
    values: dict[str, Any] = {
        "rule": "bucket_cap",
        "title": "Use smaller buckets",
        "message": "Smaller buckets start earlier and leave less to do after backward.",
        "change": {"bucket_cap_mb": 8.0},
        "saving_ns": estimate_ms(14, 4),
        "status": "predicted",
        "evidence": (Evidence(name="blocking share of the step", value=0.158, unit="fraction", threshold=0.03),),
        "caveats": ("Predicted from 4 steps; a sweep confirms it.",),
        "sources": ("PyTorch DistributedDataParallel, bucket_cap_mb",),
        "prediction": Prediction(
            config=msgspec.structs.replace(GLOO_CONFIG, bucket_cap_mb=8.0),
            step_ns=estimate_ms(167, 4),
            blocking_ns=estimate_ms(14, 4),
            exposed_ns=estimate_ms(14, 4),
            buckets=(),
        ),
        "equally_good": {"bucket_cap_mb": (6.0, 8.0, 10.0)},
        "code": {
            "torch": "model = DistributedDataParallel(model, bucket_cap_mb=8)",
            "HF Trainer": "TrainingArguments(..., ddp_bucket_cap_mb=8)",
        },
    }
    return Recommendation(**(values | overrides))


def rank_summary(rank: int = 0, **overrides: Any) -> RankSummary:
    values: dict[str, Any] = {
        "rank": rank, "file": f"rank{rank}.pt.trace.json.gz", "host": "node-a", "device_type": "cpu",
        "num_events": 20_000, "num_steps": 4, "communication_ns": 360 * MS, "compute_ns": 560 * MS,
        "overlap_ns": 248 * MS, "num_communication_kernels": 20, "num_transients": 0,
        "mean_lateness_ns": float(rank * MS),
    }  # fmt: skip
    return RankSummary(**(values | overrides))


def gloo_report(**overrides: Any) -> Report:
    values: dict[str, Any] = {
        "tool_version": "0.1.0",
        "created": "2026-01-02T03:04:05+00:00",
        "source": "runs/gpt-20260102-030405",
        "manifest": RunManifest(
            tool_version="0.1.0", created="2026-01-02T03:04:05+00:00", workload="gpt", preset="small", ddp=GLOO_CONFIG,
            parameters=(), initial_buckets=(), buckets=(), ready_order=(), versions={"torch": "2.13.0"},
            devices=tuple(DeviceInfo(rank=rank, host="node-a", device="cpu", device_type="cpu") for rank in range(2)),
        ),
        "config": GLOO_CONFIG,
        "notes": (QualityNote(message="The first 2 steps are left out: DDP rebuilds its buckets after the first."),),
        "verdict": Verdict(
            code="bandwidth_bound",
            message="15.8 % of the step waits for gradients on the wire, and bytes make 94 % of that time.",
            evidence=(
                Evidence(name="blocking share of the step", value=0.158, unit="fraction", threshold=0.03),
                Evidence(name="share of bandwidth in blocking transfers", value=0.94, unit="fraction", threshold=0.667),
            ),
            ceiling_ns=estimate_ms(152, 3),
        ),
        "alarms": (),
        "baseline": Baseline(
            measured_ns=estimate_ms(181.5, 1.5, "measured"), replayed_ns=estimate_ms(180, 3), error_fraction=-0.0083,
            noise_floor_fraction=0.01, limit_fraction=0.10,
        ),
        "recommendations": (recommendation(),),
        "step_profile": None,
        "calibration": calibration(),
        "comm_models": (comm_model(),),
        "steps": gloo_steps(),
        "buckets": gloo_buckets(),
        "collectives": (
            CollectiveSummary(
                process_group="0", kind="all_reduce", role="bucket", dtype="float32", num_elements=25 * MIB // 4,
                num_bytes=25 * MIB, count_per_step=4.0, duration_ns=estimate_ms(22, 1, "measured"),
                transfer_ns=estimate_ms(22, 1, "measured"),
            ),
        ),
        "ranks": (rank_summary(0), rank_summary(1)),
    }  # fmt: skip
    return Report(**(values | overrides))


def calibration() -> Calibration:
    return Calibration(
        concurrency=2,
        compute_slowdown=estimate(1.3, 0.1),
        communication_slowdown=estimate(1.0, 0.05),
        copy_in_ns_per_byte=estimate(0.2, 0.05),
        copy_out_ns_per_byte=estimate(0.2, 0.05),
        launch_ns=estimate(50_000, 10_000),
        host_tail_ns=estimate(0),
        baseline_residual_fraction=estimate(-0.0083, 0.005),
    )


def two_to_sixteen_ranks(**changes: Any) -> Forecast:
    """180 ms on today's two ranks, 240 ms [220, 260] on sixteen, which is three quarters as efficient."""
    fields: dict[str, Any] = {
        "profiled_world_size": 2,
        "compute": "constant",
        "rows": (
            ForecastRow(
                world_size=2,
                step_ns=estimate_ms(180, 3),
                blocking_ns=estimate_ms(28),
                efficiency_fraction=estimate(1.0),
            ),
            ForecastRow(
                world_size=16,
                step_ns=estimate_ms(240, 20, "extrapolated"),
                blocking_ns=estimate_ms(88, 20, "extrapolated"),
                efficiency_fraction=estimate(0.75, 0.06, "extrapolated"),
            ),
        ),
    }
    return Forecast(**(fields | changes))


def swept_report() -> Report:
    def arm(name: str, cap: float | None, predicted: float | None, measured: float | None, **fields: Any) -> SweepArm:
        return SweepArm(
            name=name,
            config=msgspec.structs.replace(GLOO_CONFIG, bucket_cap_mb=cap),
            predicted_ns=None if predicted is None else estimate_ms(predicted, 4),
            step_ns=None if measured is None else estimate_ms(measured, 1.5, "measured"),
            ratio=None if measured is None else estimate(measured / 180, 0.01, "measured"),
            num_steps=0 if measured is None else 48,
            **fields,
        )

    return gloo_report(
        recommendations=(recommendation(status="confirmed"),),
        next_measurement="Measure bucket_cap_mb 8 MiB next.",
        sweep=Sweep(
            arms=(
                arm("today (unset)", None, 180, 180, outcome="reference"),
                arm("today again", None, 180, 181, outcome="tie"),
                arm("bucket_cap_mb=8", 8.0, 167, 168, outcome="faster"),
                arm("bucket_cap_mb=1", 1.0, 190, 192, outcome="slower"),
                arm("powersgd:2", None, None, None, outcome="failed", message="Stopped after 60 s without a step."),
            ),
            noise_floor_fraction=0.0056,
            tie_fraction=0.02,
            num_blocks=12,
            steps_per_block=4,
            predictions_sha256="3f2a" * 16,
        ),
    )


def hostile_report(evil: str) -> Report:
    """`swept_report` with `evil` at the end of every text that somebody else could have written."""
    words = {"code", "status", "outcome", "severity", "basis", "backend", "wrapper", "role", "device_type"}
    words |= {"parallelism", "phase"}

    def poison(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: poison(item, name) for name, item in value.items()}
        if isinstance(value, list):
            return [poison(item, key) for item in value]
        return value + evil if isinstance(value, str) and key not in words else value

    return msgspec.convert(poison(msgspec.to_builtins(swept_report())), Report)


def a100_report() -> Report:
    """Three steps of 150 ms on one of two ranks; five buckets, each exposed for 1 ms, none blocking; no peer known."""
    config = DDPConfig(world_size=2, backend="nccl", wrapper="torch")
    starts_ms = (60, 70, 80, 90, 100)
    return gloo_report(
        source="a100-resnet50",
        manifest=None,
        config=config,
        notes=(
            QualityNote(message="The trace of rank 1 is missing, so waiting for it cannot be told from transfer."),
            QualityNote(message="No manifest: the settings are guessed from the buckets.", file="nccl_data.json.gz"),
        ),
        verdict=Verdict(
            code="host_bound",
            message="The device idles 60 % of the step because the host has launched nothing yet.",
            evidence=(Evidence(name="idle for late launches", value=0.6, unit="fraction", threshold=0.25),),
            ceiling_ns=estimate_ms(150, 1),
        ),
        baseline=Baseline(
            measured_ns=estimate_ms(150, 2, "measured"), replayed_ns=estimate_ms(150, 3), error_fraction=0.0,
            noise_floor_fraction=0.012, limit_fraction=0.10,
        ),
        recommendations=(),
        comm_models=(),
        steps=tuple(
            step_summary(0, step, data=5, forward=40, backward=55, blocking=0, optimizer=20, other=30, host_bound=90)
            for step in range(3)
        ),
        buckets=tuple(
            bucket_summary(
                step=step, bucket=bucket, num_elements=elements, num_bytes=4 * elements, ready_host_ns=None,
                ready_device_ms=starts_ms[bucket] - 1, launch_ms=starts_ms[bucket] - 2, start_ms=starts_ms[bucket],
                end_ms=starts_ms[bucket] + 2 + elements / 4e6, queue_wait_ms=0, peer_wait_ns=None, transfer_ns=None,
                exposed_ms=1, blocking_ms=0,
            )
            for step in range(3)
            for bucket, elements in enumerate(A100_ELEMENTS)
        ),
        ranks=(rank_summary(0, file="nccl_data.json.gz", host=None, device_type="cuda", mean_lateness_ns=None),),
    )  # fmt: skip
