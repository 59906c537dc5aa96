"""What the analysis reads off a plain trace, beside the marks of our own wrapper, which it does not look at."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from advisor.exchange import StepExchange
from advisor.observation import observe_rank
from advisor.readers.run import read_run
from advisor.schema import marks
from advisor.tables import Trace
from tests.gloo_pair import GlooPair
from workloads.ddp import BucketedDDP
from workloads.record import record

NUM_STEPS = 6
LAYER = 512 * 512 + 512
SMALLEST_LIMIT_NS = 50_000
SHARE_OF_BACKWARD = 0.01


def train(out: Path) -> None:
    torch.manual_seed(0)
    layers = (layer for _ in range(8) for layer in (nn.Linear(512, 512), nn.ReLU()))
    model = BucketedDDP(nn.Sequential(*layers), bucket_cap_mb=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with record(model, out, num_steps=NUM_STEPS) as recorder:
        for _ in range(NUM_STEPS + 5):
            model(torch.randn(256, 512)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            recorder.step()
    dist.barrier()


def find_marks(trace: Trace, mark: str, exchange: StepExchange) -> list[int]:
    """When a mark began for each bucket of a step, in the buckets' order."""
    step = exchange.step
    events = trace.events[trace.events["start_ns"].between(step.host_start_ns, step.host_end_ns)]
    rows = events[[name.startswith(f"{mark}#") for name in events["name"]]]
    found = {int(name.split("#")[1]): start for name, start in zip(rows["name"], rows["start_ns"], strict=True)}
    return [found[bucket] for bucket in sorted(found)]


def test_ready_and_launch_are_where_the_wrapper_marks_them(gloo_pair: GlooPair, tmp_path: Path) -> None:
    gloo_pair.run(train, tmp_path / "run")
    ready: list[float] = []
    launch: list[float] = []
    for trace in read_run([tmp_path / "run"]).traces:
        exchanges = observe_rank(trace).exchanges
        assert len(exchanges) == NUM_STEPS
        for exchange in exchanges:
            assert [bucket.collective.num_elements for bucket in exchange.buckets] == [2 * LAYER] * 4
            limit = max(SMALLEST_LIMIT_NS, SHARE_OF_BACKWARD * (exchange.backward.end_ns - exchange.backward.start_ns))
            seen = [(bucket.ready_host_ns or 0, bucket.collective.launch_ns) for bucket in exchange.buckets]
            ready += _compare([at for at, _ in seen], find_marks(trace, marks.BUCKET_READY, exchange), limit)
            launch += _compare([at for _, at in seen], find_marks(trace, marks.BUCKET_LAUNCH, exchange), limit)
    # Between a mark and what the profiler writes itself the machine may do something else, now and then.
    assert median(ready) < 1
    assert median(launch) < 1
    assert np.mean(np.array([ready, launch]) < 1) > 0.9


def _compare(seen: list[int], marked: list[int], limit: float) -> list[float]:
    return [abs(a - b) / limit for a, b in zip(seen, marked, strict=True)]
