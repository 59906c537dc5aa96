"""How many parameters get gradients, as far as the traces or a manifest tell."""

from __future__ import annotations

from typing import NamedTuple

from advisor.exchange import classify_collective
from advisor.verdict import Analysis


class Usage(NamedTuple):
    """Parameters that the wrapper knows, and the fewest and most of them that got a gradient in a backward."""

    parameters: int
    fewest: int
    most: int


def count_used(analysis: Analysis) -> Usage | None:
    """Counts gradients beside parameters; None where either is unknown.

    DDP's mark of unused parameters has an element for each parameter.
    """
    ranks = analysis.run.ranks
    marks = {
        collective.num_elements
        for rank in ranks
        for collective in rank.collectives
        if classify_collective(collective) == "unused_parameter_mark"
    }
    if analysis.run.manifest is not None and analysis.run.manifest.parameters:
        marks = {len(analysis.run.manifest.parameters)}
    counts = [len(exchange.gradients) for rank in ranks for exchange in rank.exchanges]
    if len(marks) != 1 or not counts or min(counts) == 0:
        return None
    return Usage(marks.pop(), min(counts), max(counts))
