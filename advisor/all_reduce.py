"""What an all-reduce among P ranks takes on paper: what each rank sends, and how many messages follow each other.

A ring passes every piece around twice, a tree reduces upwards and broadcasts downwards. Both make every rank send
nearly twice the data, and differ in the number of messages that wait for each other, and in what one message holds:
in a ring a P-th of the data, so that the size at which messages change their ways grows with the ranks.

    4 GB: 8 ranks send 2 · 7/8 · 4 = 7 GB each, 16 ranks 7.5 GB; a ring takes 14 and 30 messages, a tree 6 and 8

**Source**: Thakur, Rabenseifner and Gropp, Optimization of Collective Communication Operations in MPICH (2005);
Patarasuk and Yuan, Bandwidth Optimal All-reduce Algorithms (2009); NCCL's double binary trees (NVIDIA, 2019).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Algorithm:
    """How messages grow with the number of ranks."""

    count_messages: Callable[[int], float]
    """Messages that follow each other."""
    count_pieces: Callable[[int], int]
    """Pieces into which the data are cut; one message holds one."""


def traffic_factor(world_size: int) -> float:
    """What each rank sends over what is reduced: 2 (P - 1) / P."""
    return 2 * (world_size - 1) / world_size


def count_ring_messages(world_size: int) -> float:
    """Messages that follow each other in a ring: 2 (P - 1)."""
    return 2.0 * (world_size - 1)


def count_tree_messages(world_size: int) -> float:
    """Messages that follow each other in a binary tree: 2 log2 P."""
    return 2 * math.log2(world_size)


RING = Algorithm(count_messages=count_ring_messages, count_pieces=int)
TREE = Algorithm(count_messages=count_tree_messages, count_pieces=lambda world_size: 1)
