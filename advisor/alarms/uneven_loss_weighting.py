"""Means over different numbers of samples or tokens are averaged with equal weights, which is not the mean over all."""

from __future__ import annotations

from collections import Counter, defaultdict

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
    groups = group_updates(analysis)
    uneven = [updates for updates in groups if is_uneven(updates)]
    if not uneven or len(uneven) < MOSTLY * len(groups):
        return None
    places = list_places(update for updates in uneven for update in updates)
    rows = find_rows(analysis.steps, places)
    smallest, *_, largest = list_loss_sizes(uneven[0])
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


def group_updates(analysis: Analysis) -> list[list[Update]]:
    """The updates that all ranks make together: the first one of a step on every rank, the second one, and so on."""
    groups: dict[tuple[int, int], list[Update]] = defaultdict(list)
    numbers: Counter[tuple[int, int]] = Counter()
    for update in list_updates(analysis):
        numbers[update.rank, update.step] += 1
        groups[update.step, numbers[update.rank, update.step]].append(update)
    return list(groups.values())


def is_uneven(updates: list[Update]) -> bool:
    """Whether all losses of one update are known, differ, and nothing small is exchanged that could be their counts."""
    sizes = list_loss_sizes(updates)
    return sizes[0] >= 0 and sizes[0] < sizes[-1] and not any(update.num_small_exchanges for update in updates)


def list_loss_sizes(updates: list[Update]) -> list[int]:
    """Elements of the losses of all ranks and micro-batches, sorted."""
    return sorted(micro_step.loss_elements for update in updates for micro_step in update.micro_steps)
