"""PowerSGD's exchange of a bucket: what it sends, what it computes in between, and who waits for what.

A matrix M (n × m) travels as P (n × r) and then Q (m × r), r = min(n, m, rank), where (n + m) r · 2 < n m; other
gradients travel as they are. So a bucket is a chain of up to three all-reduces with computation between them:

    before    the error of the last step, and P = M Q
    between   P made orthonormal, and Q = Mᵀ P
    after     M = P Qᵀ, and the new error

On NCCL torch's own hook reduces the others, then P, then Q, and synchronises the device before it returns: nothing of
backward runs beside a chain, and one bucket follows the other. On gloo torch's hook hangs; ours reduces P and the
others of each bucket beside backward, and all Q when the last bucket is ready.

    a bucket of a 100 × 50 float32 matrix and its bias of 100, rank 2: P 800 bytes, Q 400, others 400

**Source**: torch 2.13, torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py (`powerSGD_hook`, `decompress`);
workloads/comm_hooks.py (`powersgd_hook`); Vogels et al., PowerSGD (NeurIPS 2019).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple, TypeVar

from advisor.schema import POWERSGD

MIN_COMPRESSION = 2
"""A matrix is compressed if that sends this many times fewer elements: the default of torch's hook, and of ours."""
BEFORE, BETWEEN, AFTER = 0.3, 0.5, 0.2
"""Shares of the computation, as `python -m benchmarks powersgd` measured them on a CPU for ranks above 1.

Where nothing runs beside a chain their order does not matter; elsewhere only what comes before can be hidden by it.
"""
OTHERS_WEIGHT = 0.2
"""What is computed for a byte that is not compressed, over that for one that is: the error is added to it and taken
from it, and it is copied, which is some 6 copies of the 28 that `THIN_COPIES` in calibrate.py tells.
"""

Cost = TypeVar("Cost")


class Parts(NamedTuple):
    """What a bucket sends, in bytes, and the matrices that it compresses."""

    p_bytes: float
    q_bytes: float
    other_bytes: float
    matrix_bytes: float
    num_matrices: int

    @property
    def computed_bytes(self) -> float:
        """Bytes of matrices that would cost as much computation as all its gradients."""
        return self.matrix_bytes + OTHERS_WEIGHT * self.other_bytes


class Round(NamedTuple):
    """One transfer of a bucket, with what is computed before it; one without bytes is the computation alone."""

    bucket: int
    num_bytes: float
    share: float
    """Of the bucket's computation that comes before this transfer."""
    awaits: int
    """How many transfers must have ended before that."""


def find_powersgd_rank(comm_hook: str) -> int | None:
    """The rank of a hook's name: `powersgd:4` is 4; None for other hooks."""
    found = re.fullmatch(rf"{POWERSGD}:([1-9]\d*)", comm_hook)
    return int(found[1]) if found else None


def find_cost(costs: Mapping[str, Cost], hook: str, unknown: Cost) -> Cost:
    """The cost of a hook; of PowerSGD the one for its rank, else the one for every rank."""
    return costs.get(hook, costs.get(hook.partition(":")[0], unknown))


def split_bucket(gradients: Sequence[tuple[int, Sequence[int]]], rank: int) -> Parts:
    """What a bucket sends of its gradients, each told by its bytes and its shape.

    **Source**: `_should_compress` in powerSGD_hook.py, torch 2.13.
    """
    p_bytes = q_bytes = other_bytes = matrix_bytes = 0.0
    num_matrices = 0
    for num_bytes, shape in gradients:
        rows = shape[0] if shape else 1
        columns = prod(shape[1:])
        own_rank = min(rows, columns, rank)
        if (rows + columns) * own_rank * MIN_COMPRESSION < rows * columns:
            item_bytes = num_bytes / (rows * columns)
            p_bytes += rows * own_rank * item_bytes
            q_bytes += columns * own_rank * item_bytes
            matrix_bytes += num_bytes
            num_matrices += 1
        else:
            other_bytes += num_bytes
    return Parts(p_bytes, q_bytes, other_bytes, matrix_bytes, num_matrices)


def list_rounds(buckets: Sequence[Parts], *, holds: bool) -> list[Round]:
    """The rounds of all buckets, in the order in which the host comes to them.

    Args:
        buckets: In launch order.
        holds: Whether backward is held up until each bucket is done, as by torch's own hook.
    """
    return list(_list_holding_rounds(buckets) if holds else _list_late_rounds(buckets))


def _list_holding_rounds(buckets: Sequence[Parts]) -> Iterator[Round]:
    """Each round awaits all before it."""
    place = 0
    for bucket, parts in enumerate(buckets):
        sent = ((parts.other_bytes, 0.0), (parts.p_bytes, 0.0), (parts.q_bytes, BETWEEN))
        for number, (num_bytes, share) in enumerate(part for part in sent if part[0]):
            yield Round(bucket, num_bytes, share if number else BEFORE, place)
            place += 1
        yield Round(bucket, 0.0, AFTER, place)
        place += 1


def _list_late_rounds(buckets: Sequence[Parts]) -> Iterator[Round]:
    """First rounds await nothing; a second one awaits its own first; what comes after it awaits the second."""
    place = 0
    firsts, seconds = [], []
    for bucket, parts in enumerate(buckets):
        for number, num_bytes in enumerate(part for part in (parts.p_bytes, parts.other_bytes) if part):
            yield Round(bucket, num_bytes, 0.0 if number else BEFORE, 0)
            place += 1
        firsts.append(place)
    for bucket, (parts, first) in enumerate(zip(buckets, firsts, strict=True)):
        if parts.q_bytes:
            yield Round(bucket, parts.q_bytes, BETWEEN, first)
            place += 1
        seconds.append(place)
    for bucket, second in enumerate(seconds):
        yield Round(bucket, 0.0, AFTER, second)
