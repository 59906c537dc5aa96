"""Which launch each execution of a gloo collective belongs to, where a trace may lack either of the two."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import pandas as pd

from advisor.readers.names import CollectiveKind, name_collective_kind

Queue: TypeAlias = tuple[int, CollectiveKind | None, int]
"""Step, kind and number of elements: what a step launches runs in that step, and what is alike first in first out."""
UNKNOWN_SIZE = -1


def find_launches(operators: pd.DataFrame, spans: pd.DataFrame, step_starts: Sequence[int]) -> list[int]:
    """The place in `operators` of the launch of each of `spans`, -1 where it was not recorded.

    Of some that are alike and queue at once nobody can tell which one is missing; such an error ends with its step.

    Args:
        operators: What launches, on the caller's thread.
        spans: The executions, on gloo's threads.
        step_starts: When the steps begin, ns, sorted.
    """
    launches = _queue_up(operators, step_starts)
    executions: dict[Queue, list[int]] = defaultdict(list)
    for (step, kind, size), places in _queue_up(spans, step_starts).items():
        executions[step, kind, size if (step, kind, size) in launches else UNKNOWN_SIZE] += places
    launched_ns, started_ns = operators["start_ns"].tolist(), spans["start_ns"].tolist()
    launch_of = [-1] * len(spans)
    for queue in executions.keys() & launches.keys():
        own, runs = launches[queue], executions[queue]
        for i, j in pair_in_order([launched_ns[place] for place in own], [started_ns[place] for place in runs]):
            launch_of[runs[j]] = own[i]
    return launch_of


def pair_in_order(launches: Sequence[int], starts: Sequence[int]) -> list[tuple[int, int]]:
    """Index pairs of a launch and its execution, first in first out: as many as can be, of the shortest waits in all.

    None starts before its launch. The sum of the waits depends only on which are left without a partner: the launches
    that lie furthest back where an execution is missing, and each execution that no launch precedes.

    Example: of launches at 0, 10 and 20 and starts at 1 and 21, the second execution is missing: [(0, 0), (2, 1)].
    """
    moments = sorted([(at, False, i) for i, at in enumerate(launches)] + [(at, True, j) for j, at in enumerate(starts)])
    waiting: list[int] = []
    taken: list[int] = []
    served: list[int] = []
    for _, is_start, place in moments:
        if not is_start:
            waiting.append(place)
        elif waiting:
            taken.append(waiting.pop())
            served.append(place)
    return list(zip(sorted(taken, key=lambda i: launches[i]), served, strict=True))


def _queue_up(rows: pd.DataFrame, step_starts: Sequence[int]) -> Mapping[Queue, list[int]]:
    steps = np.searchsorted(np.asarray(step_starts, dtype=np.int64), rows["start_ns"].to_numpy(), side="right")
    queues: dict[Queue, list[int]] = defaultdict(list)
    for place, (step, name, size) in enumerate(zip(steps.tolist(), rows["name"], rows["num_elements"], strict=True)):
        queues[step, name_collective_kind(name), size].append(place)
    return dict(queues)
