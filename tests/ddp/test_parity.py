"""BucketedDDP trains like torch's wrapper and like one process, through the same buckets."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.ddp import models
from tests.ddp.parity import Outcome, difference, spread, train, train_alone, train_three_ways
from tests.gloo_pair import GlooPair
from workloads.ddp import BucketedDDP

SMALL_CAP = {"bucket_cap_mb": 0.008}
SETTINGS: dict[str, dict[str, Any]] = {
    "unset": {},
    "default cap, explicit": {"bucket_cap_mb": 25},
    "small cap": SMALL_CAP,
    "cap list": {"bucket_cap_mb_list": [0.001, 0.02, 0.008]},
    "views": {**SMALL_CAP, "gradient_as_bucket_view": True},
    "batched copies": {**SMALL_CAP, "batched_grad_copy": True},
    "batched copies into views": {**SMALL_CAP, "batched_grad_copy": True, "gradient_as_bucket_view": True},
    "find unused": {**SMALL_CAP, "find_unused_parameters": True},
    "find unused, default caps": {"find_unused_parameters": True},
    "find unused, views": {**SMALL_CAP, "find_unused_parameters": True, "gradient_as_bucket_view": True},
    "static graph": {**SMALL_CAP, "static_graph": True},
    "static graph, views": {**SMALL_CAP, "static_graph": True, "gradient_as_bucket_view": True},
    "static graph wins": {**SMALL_CAP, "static_graph": True, "find_unused_parameters": True},
    "no buffers": {**SMALL_CAP, "forward_sync_buffers": False},
}


def check(outcomes: list[Outcome], *, tolerance: float = 1e-6) -> None:
    for outcome in outcomes:
        assert outcome.to_torch < tolerance
        assert outcome.to_one_process < tolerance
        assert outcome.between_ranks == 0
        assert outcome.initial_bytes[0] == outcome.initial_bytes[1]
        assert outcome.rebuilt[0] == outcome.rebuilt[1]


@pytest.mark.parametrize("name", SETTINGS)
def test_settings(gloo_pair: GlooPair, name: str) -> None:
    check(gloo_pair.run(train_three_ways, models.Mlp, SETTINGS[name]))


@pytest.mark.parametrize("name", ["small cap", "views", "find unused", "static graph", "cap list"])
@pytest.mark.parametrize("build", [models.DeclaredInReverse, models.FrozenTiedShared, models.ChannelsLast])
def test_models(gloo_pair: GlooPair, build: type[nn.Module], name: str) -> None:
    check(gloo_pair.run(train_three_ways, build, SETTINGS[name]))


@pytest.mark.parametrize("name", ["unset", "small cap", "views", "cap list", "find unused", "static graph"])
def test_mixed_dtypes_travel_in_buckets_of_their_own(gloo_pair: GlooPair, name: str) -> None:
    # One process sums bfloat16 gradients in another order.
    outcomes: list[Outcome] = gloo_pair.run(train_three_ways, models.MixedDtypes, SETTINGS[name])
    for outcome in outcomes:
        assert outcome.to_one_process < 2e-3
        outcome.to_one_process = 0
    check(outcomes)


@pytest.mark.parametrize("name", ["small cap", "find unused", "static graph"])
def test_nested_outputs(gloo_pair: GlooPair, name: str) -> None:
    check(gloo_pair.run(train_three_ways, models.NestedOutputs, SETTINGS[name]))


@pytest.mark.parametrize("name", ["unset", "small cap", "views", "static graph"])
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_activation_checkpointing(gloo_pair: GlooPair, use_reentrant: bool, name: str) -> None:
    build = partial(models.Checkpointed, use_reentrant=use_reentrant)
    check(gloo_pair.run(train_three_ways, build, SETTINGS[name]))


@pytest.mark.parametrize("from_the_start", [True, False])
@pytest.mark.parametrize("name", ["static graph", "static graph, views"])
def test_a_block_checkpointed_twice_needs_a_static_graph(gloo_pair: GlooPair, name: str, from_the_start: bool) -> None:
    build = partial(models.CheckpointedTwice, from_the_start=from_the_start)
    check(gloo_pair.run(train_three_ways, build, SETTINGS[name]))


@pytest.mark.parametrize(
    ("build", "settings"),
    [
        (models.Experts, SETTINGS["find unused"]),
        (models.Experts, SETTINGS["find unused, views"]),
        (models.Experts, {**SETTINGS["find unused"], "batched_grad_copy": True}),
        (models.ExpertsAlone, SETTINGS["static graph"]),
        (models.ExpertsAlone, SETTINGS["static graph, views"]),
        (models.UnusedOnAllRanks, SETTINGS["find unused"]),
        (models.UnusedOnAllRanks, {**SETTINGS["find unused"], "skip_all_reduce_unused_params": True}),
        (models.UnusedOnAllRanks, SETTINGS["static graph"]),
        (models.UnusedOnAllRanks, SETTINGS["static graph, views"]),
    ],
)
def test_unused_parameters(gloo_pair: GlooPair, build: Callable[[], nn.Module], settings: dict[str, Any]) -> None:
    check(gloo_pair.run(train_three_ways, build, settings))


@pytest.mark.parametrize("name", [name for name in SETTINGS if "static" not in name])
def test_accumulation_equals_the_full_batch(gloo_pair: GlooPair, name: str) -> None:
    check(gloo_pair.run(train_three_ways, models.Mlp, SETTINGS[name], num_micro_steps=3))


@pytest.mark.parametrize("name", ["small cap", "views", "batched copies into views", "find unused, views"])
def test_gradients_that_are_zeroed_in_place(gloo_pair: GlooPair, name: str) -> None:
    check(gloo_pair.run(train_three_ways, models.Mlp, SETTINGS[name], num_micro_steps=2, set_to_none=False))


def train_ours(build: Callable[[], nn.Module], settings: dict[str, Any], num_micro_steps: int) -> tuple[float, float]:
    torch.manual_seed(0)
    model = build()
    ours = BucketedDDP(copy.deepcopy(model), **settings)
    train(ours, dist.get_rank(), num_micro_steps)
    train_alone(model, num_micro_steps)
    return difference(ours.module, model), spread(ours.module)


@pytest.mark.parametrize(("build", "num_micro_steps"), [(models.Experts, 1), (models.Mlp, 3)])
def test_what_only_our_static_graph_can(
    gloo_pair: GlooPair, build: Callable[[], nn.Module], num_micro_steps: int
) -> None:
    """An output that the loss ignores, and a first backward inside no_sync (pytorch#143580)."""
    for to_one_process, between_ranks in gloo_pair.run(train_ours, build, SETTINGS["static graph"], num_micro_steps):
        assert to_one_process < 1e-6
        assert between_ranks == 0
