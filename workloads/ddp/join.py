"""Uneven inputs: a rank that has run out of data shadows the collectives of those that have not.

Used as torch's: `with Join([ddp]): for batch in batches: …`, or `with ddp.join(): …`. Each forward costs small
collectives more: how many ranks still train, which of them has the buffers to copy, and whether it synchronises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join, JoinHook

from workloads.ddp.replicas import broadcast_tensors

if TYPE_CHECKING:
    from workloads.ddp.module import BucketedDDP


class Shadow(JoinHook):
    """What a rank without data does in the place of each forward and backward of the others."""

    def __init__(self, ddp: BucketedDDP) -> None:
        self._ddp = ddp

    def main_hook(self) -> None:
        """Issues the collectives of one step with nothing to contribute."""
        ddp = self._ddp
        ddp.reducer.prepare_forward()
        if ddp.will_sync_buffers():
            broadcast_tensors(ddp.buffers_to_sync(), find_source(ddp, is_candidate=False), ddp.process_group)
        ddp.may_sync_buffers = agree_to_synchronize(ddp, wants=False)
        if ddp.may_sync_buffers:
            ddp.reducer.shadow_backward()

    def post_hook(self, is_last_joiner: bool) -> None:
        """Takes over the model of a rank that trained to the end."""
        source = find_source(self._ddp, is_candidate=is_last_joiner)
        buffers = self._ddp.buffers_to_sync() if self._ddp.config.forward_sync_buffers else []
        broadcast_tensors([*self._ddp.parameters(), *buffers], source, self._ddp.process_group)


def count_training_ranks(ddp: BucketedDDP) -> int:
    """Tells the shadows that a forward begins; returns by how many ranks to divide, all of them outside a join."""
    work = Join.notify_join_context(ddp)
    if work is None or ddp.divides_by_all_ranks:
        return ddp.config.world_size
    work.wait()
    return int(work.result()[0].item())


def agree_to_synchronize(ddp: BucketedDDP, *, wants: bool) -> bool:
    """Whether any rank's coming backward synchronises."""
    votes = torch.tensor([float(wants)], device=ddp.join_device)
    dist.all_reduce(votes, group=ddp.process_group)
    return votes.item() > 0


def find_source(ddp: BucketedDDP, *, is_candidate: bool) -> int:
    """The highest rank among the candidates, by common agreement."""
    rank = dist.get_rank(ddp.process_group) if is_candidate else -1
    highest = torch.tensor([rank], device=ddp.join_device)
    dist.all_reduce(highest, dist.ReduceOp.MAX, group=ddp.process_group)
    return int(highest.item())
