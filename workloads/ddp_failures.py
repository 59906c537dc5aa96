"""What can go wrong in a synchronising backward, told in a sentence that names rank and parameters."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.errors import RunError

MAX_NAMES = 5


def reduction_failed(rank: int, bucket: int, num_bytes: int, error: Exception) -> RunError:
    """The process group failed while a bucket was under way: a dead peer, a time-out, a mismatch."""
    return RunError(
        f"Rank {rank}: the reduction of bucket {bucket} ({num_bytes} bytes) failed: {error} "
        "Look for the rank that ended or hung first."
    )


def gradients_missing(rank: int, missing: Sequence[str], frozen: Sequence[str], *, is_static: bool) -> RunError:
    """A backward left parameters without a gradient, so that their buckets were never averaged."""
    if frozen:
        reason = f"{list_names(frozen)} was frozen after wrapping; freeze before, or wrap again."
    elif is_static:
        reason = "a graph that changes is not static; leave static_graph out."
    else:
        reason = "let every output and parameter take part in the loss, or pass find_unused_parameters=True."
    return RunError(
        f"Rank {rank}: the last backward gave no gradient to {list_names(missing)}, so the ranks were not averaged: "
        + reason
    )


def ready_twice(rank: int, name: str, *, is_static: bool) -> RunError:
    """A parameter reported a gradient after its part of the bucket was filled."""
    if is_static:
        return RunError(
            f"Rank {rank}: {name} got a gradient that it did not get in the first step: a graph that changes is not "
            "static; leave static_graph out."
        )
    return RunError(
        f"Rank {rank}: {name} got a second gradient before the first backward was over, when its bucket was filled "
        "already: run one backward a forward, do not use parameters outside forward or in two re-entrant "
        "checkpoints, or pass static_graph=True if the graph never changes."
    )


def sparse_gradient(shape: tuple[int, ...]) -> RunError:
    """A gradient came as a sparse tensor, which a flat bucket cannot hold."""
    return RunError(
        f"A parameter of shape {shape} got a sparse gradient, which BucketedDDP cannot average: use sparse=False."
    )


def late_gradient(name: str) -> str:
    """A second backward after the averaging: its gradients stay on this rank."""
    return (
        f"{name} got another gradient after this step's averaging was over; it stays on this rank and the replicas "
        "drift apart: run forward again before each backward, or use no_sync() for all but the last."
    )


def unfrozen(names: Sequence[str]) -> str:
    """Parameters that the wrapper does not know of."""
    return (
        f"{list_names(names)} was unfrozen after wrapping, so its gradients are not averaged and the replicas drift "
        "apart: unfreeze before wrapping, or wrap the module again."
    )


def list_names(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    shown = ", ".join(names[:MAX_NAMES])
    return f"{shown} and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else shown
