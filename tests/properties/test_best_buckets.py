"""A list of caps makes torch form exactly the buckets that it was written for."""

from __future__ import annotations

import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.parallel.distributed import _BucketCapacityConfig

from advisor.best_buckets import list_caps_mb
from advisor.bucketing import MIB, bucket_limits

models = st.lists(st.integers(1, 3 * MIB), min_size=1, max_size=12)


@given(models, st.data())
def test_torch_forms_exactly_these_buckets_from_the_list(elements: list[int], data: st.DataObject) -> None:
    """Through torch's own reading of the setting and its own assignment, on tensors that hold no memory."""
    borders = data.draw(st.sets(st.integers(1, len(elements))))
    ends = tuple(sorted(borders | {len(elements)}))
    tensors = [torch.empty(1).expand(numel) for numel in elements]
    caps_mb = list_caps_mb([4 * numel for numel in elements], ends)
    torchs = _BucketCapacityConfig.create(None, list(caps_mb), use_python_reducer=False)  # type: ignore[arg-type]
    assert torchs.per_bucket_bytes_caps == bucket_limits(None, caps_mb)
    _, limits = torchs.compute_bucket_size_limits(static_graph=False, find_unused_parameters=False)
    buckets, _ = dist._compute_bucket_assignment_by_size(
        tensors, limits, [False] * len(tensors), list(range(len(tensors)))
    )
    assert [bucket[-1] + 1 for bucket in buckets] == list(ends)
