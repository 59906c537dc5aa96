"""Means over different numbers of samples or tokens are averaged with equal weights, which is not the mean over all."""

from __future__ import annotations

from collections import defaultdict

from advisor.alarms._base import MOSTLY, find_rows, list_places, list_ranks, list_steps, list_updates
from advisor.schema import Alarm, Evidence
from advisor.updates import Update
from advisor.verdict import Analysis

CODE = """\
num_tokens = torch.tensor(float(sum(mask.sum() for mask in masks)), device=device)
dist.all_reduce(num_tokens)  # over all ranks and micro-batches of this update
loss = loss_fn(logits, targets, reduction="sum") * dist.get_world_size() / num_tokens"""


def check(analysis: Analysis) -> Alarm | None:
    """Raises the alarm where the losses of one update see inputs of different size, on its ranks or micro-batches.

    Silent where small collectives run beside DDP's: the counts may be exchanged in them, as they should. Tokens that
    are masked and not cut off leave no trace.
    """
    by_step: dict[int, list[Update]] = defaultdict(list)
    for update in list_updates(analysis):
        by_step[update.step].append(update)
    uneven = [updates for updates in by_step.values() if is_uneven(updates)]
    if not uneven or len(uneven) < MOSTLY * len(by_step):
        return None
    places = list_places(update for updates in uneven for update in updates)
    rows = find_rows(analysis.steps, places)
    smallest, largest = list_loss_sizes(uneven[0])[:: len(list_loss_sizes(uneven[0])) - 1]
    return Alarm(
        code="uneven_loss_weighting",
        severity="warning",
        message=(
            f"Losses of one update are taken over {smallest} and over {largest} elements, but DDP weighs all ranks and "
            "micro-batches alike: if they are means, the gradient is not that of the mean over all samples."
        ),
        fix="Sum the loss, and divide it by the number of samples or tokens of all ranks and micro-batches.",
        code_fix=CODE,
        ranks=list_ranks(places),
        steps=list_steps(places),
        evidence=(
            Evidence(name="elements of the smallest loss", value=float(smallest), unit="", table="steps", rows=rows),
            Evidence(name="elements of the largest loss", value=float(largest), unit="", table="steps", rows=rows),
        ),
    )


def is_uneven(updates: list[Update]) -> bool:
    """Whether all losses of one update are known, differ, and nothing small is exchanged that could be their counts."""
    sizes = list_loss_sizes(updates)
    return sizes[0] >= 0 and sizes[0] < sizes[-1] and not any(update.num_small_exchanges for update in updates)


def list_loss_sizes(updates: list[Update]) -> list[int]:
    """Elements of the losses of all ranks and micro-batches, sorted."""
    return sorted(micro_step.loss_elements for update in updates for micro_step in update.micro_steps)
