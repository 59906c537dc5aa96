"""Comm hooks: torch's own run unmodified under our wrapper and give what they give under torch's."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook, quantization_hooks
from torch.futures import Future

from advisor.errors import AdvisorError, UsageError
from tests.ddp import models
from tests.ddp.collectives import recorded
from tests.ddp.parity import difference, inputs, loss_of, train, train_three_ways
from tests.gloo_pair import GlooPair
from workloads.comm_hooks import register_named_hook
from workloads.ddp import BucketedDDP

CAP = {"bucket_cap_mb": 0.008}
VIEWS = {**CAP, "gradient_as_bucket_view": True}


def register(wrapped: Any, *, name: str) -> None:
    register_named_hook(wrapped, name, powersgd_start_step=3)


def register_all_reduce_hook(wrapped: Any) -> None:
    wrapped.register_comm_hook(None, default_hooks.allreduce_hook)


def register_fp16_wrapper(wrapped: Any) -> None:
    wrapped.register_comm_hook(None, default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook))


def register_torchs_powersgd(wrapped: Any) -> None:
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


@pytest.mark.parametrize("settings", [CAP, VIEWS, {**VIEWS, "batched_grad_copy": True}, {**CAP, "static_graph": True}])
@pytest.mark.parametrize(
    ("prepare", "to_one_process"),
    [
        (partial(register, name="none"), 1e-6),
        (partial(register, name="allreduce"), 1e-6),
        (register_all_reduce_hook, 1e-6),
        (partial(register, name="fp16"), 1e-3),
        (register_fp16_wrapper, 1e-3),
        (partial(register, name="bf16"), 1e-2),
        (partial(register, name="powersgd:2"), 0.1),
    ],
)
def test_same_as_under_torchs_wrapper(
    gloo_pair: GlooPair, prepare: Any, to_one_process: float, settings: dict[str, Any]
) -> None:
    for outcome in gloo_pair.run(train_three_ways, models.Mlp, settings, prepare=prepare):
        assert outcome.to_torch < 1e-6
        assert outcome.to_one_process < to_one_process
        assert outcome.between_ranks == 0
        assert len(outcome.rebuilt[0]) >= 3


def test_torchs_powersgd_runs_with_one_bucket(gloo_pair: GlooPair) -> None:
    outcomes = gloo_pair.run(train_three_ways, models.Mlp, {"bucket_cap_mb": 25}, prepare=register_torchs_powersgd)
    for outcome in outcomes:
        assert outcome.to_torch < 1e-6
        assert outcome.between_ranks == 0


def noop_gradients(settings: dict[str, Any]) -> tuple[bool, list[int]]:
    torch.manual_seed(0)
    model = models.Mlp()
    ours = BucketedDDP(copy.deepcopy(model), **settings)
    register(ours, name="noop")
    x = inputs(0, dist.get_rank())
    with recorded() as sent:
        loss_of(ours(x, 0)).backward()
    loss_of(model(x, 0)).backward()
    pairs = zip(ours.module.parameters(), model.parameters(), strict=True)
    return all(torch.equal(p.grad, q.grad) for p, q in pairs), sent.all_reduces


@pytest.mark.parametrize("settings", [CAP, VIEWS])
def test_noop_sends_nothing_and_leaves_each_rank_its_own_gradients(
    gloo_pair: GlooPair, settings: dict[str, Any]
) -> None:
    assert gloo_pair.run(noop_gradients, settings) == [(True, [])] * 2


def train_torchs_bf16_hooks() -> tuple[float, float]:
    def trained(hook: Any) -> BucketedDDP:
        torch.manual_seed(0)
        ours = BucketedDDP(models.Mlp(), bucket_cap_mb=0.008)
        ours.register_comm_hook(None, hook) if hook else register(ours, name="bf16")
        train(ours, dist.get_rank(), 1)
        return ours

    plain = trained(default_hooks.bf16_compress_hook)
    wrapped = trained(default_hooks.bf16_compress_wrapper(default_hooks.allreduce_hook))
    named = trained(None)
    return difference(plain, named), difference(wrapped, named)


def test_torchs_bf16_hooks_run_on_gloo(gloo_pair: GlooPair) -> None:
    # The wrapper rounds once more, since it divides in bfloat16 before the sum.
    assert all(plain == 0 and wrapped < 1e-2 for plain, wrapped in gloo_pair.run(train_torchs_bf16_hooks))


class OneMatrix(nn.Module):
    """Its gradient, an outer product, has rank one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(40, models.WIDTH))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return left @ self.weight @ right


def compress(rank: int) -> tuple[float, float, list[int]]:
    """Every rank sends the same matrix again and again; how far the last and the mean result are off."""
    ours = BucketedDDP(OneMatrix())
    register_named_hook(ours, f"powersgd:{rank}", powersgd_start_step=3)
    generator = torch.Generator().manual_seed(dist.get_rank())
    pairs = [(torch.randn(40, generator=generator), torch.randn(models.WIDTH, generator=generator)) for _ in range(3)]
    exact = torch.stack([torch.outer(left, right) for left, right in pairs]).sum(0)
    dist.all_reduce(exact)
    exact /= dist.get_world_size()
    results: list[Tensor] = []

    def step() -> None:
        ours.zero_grad()
        torch.stack([ours(left, right) for left, right in pairs]).sum().backward()
        assert ours.module.weight.grad is not None
        results.append(ours.module.weight.grad)

    for _ in range(42):
        step()
    with recorded() as sent:
        step()
    compressed = torch.stack(results[3:])
    last, mean = (compressed[-1] - exact).norm() / exact.norm(), (compressed.mean(0) - exact).norm() / exact.norm()
    return last.item(), mean.item(), sent.all_reduces


def test_powersgd_is_exact_for_matrices_of_its_rank(gloo_pair: GlooPair) -> None:
    for last, _, sent in gloo_pair.run(compress, 6):  # three outer products a rank
        assert last < 1e-4
        assert sent == [40 * 6, models.WIDTH * 6]


def test_powersgd_makes_up_for_what_it_missed(gloo_pair: GlooPair) -> None:
    for last, mean, sent in gloo_pair.run(compress, 1):
        assert last > 0.1
        assert mean < 0.1
        assert sent == [40, models.WIDTH]


def returns_no_future(state: object, bucket: Any) -> Any:
    return bucket.buffer()


def wrong_bucket(state: object, bucket: int) -> Any:
    return bucket


wrong_bucket.__annotations__["bucket"] = int


def wrong_result(state: object, bucket: Any) -> Any:
    return bucket


wrong_result.__annotations__["return"] = Tensor


def refusals() -> list[str]:
    messages: list[str] = []

    def attempt(hook: Any, settings: dict[str, Any] = CAP, num: int = 1) -> None:
        ours = BucketedDDP(models.Mlp(), **settings)
        try:
            for _ in range(num):
                ours.register_comm_hook(None, hook)
            loss_of(ours(inputs(0, 0), 0)).backward()
        except AdvisorError as error:
            messages.append(str(error))

    attempt("no hook")
    attempt(wrong_bucket)
    attempt(wrong_result)
    attempt(returns_no_future)
    attempt(default_hooks.allreduce_hook, num=2)
    attempt(powerSGD_hook.powerSGD_hook)
    attempt(default_hooks.fp16_compress_wrapper(powerSGD_hook.batched_powerSGD_hook))
    attempt(quantization_hooks.quantization_perchannel_hook)
    for name, start_step in (("bf17", 3), ("powersgd", 3), ("powersgd:0", 3), ("powersgd:1", 2)):
        try:
            register_named_hook(BucketedDDP(models.Mlp()), name, powersgd_start_step=start_step)
        except UsageError as error:
            messages.append(str(error))
    return messages


def test_what_cannot_run_is_refused_in_a_sentence(gloo_pair: GlooPair) -> None:
    expected = [
        "must be callable",
        "bucket: dist.GradBucket",
        "must return a torch.futures.Future",
        "The comm hook returned tensor",
        "one hook a wrapper",
        "powerSGD_hook fails or hangs on gloo: register powersgd:<rank>",
        "batched_powerSGD_hook fails or hangs on gloo",
        "quantization_perchannel_hook fails or hangs on gloo",
        "no comm hook 'bf17': choose none, allreduce, fp16, bf16, noop or powersgd:<rank>",
        "no comm hook 'powersgd'",
        "no comm hook 'powersgd:0'",
        "cannot start in step 2",
    ]
    messages, _ = gloo_pair.run(refusals)
    assert len(messages) == len(expected)
    for message, part in zip(messages, expected, strict=True):
        assert part in message


def bucket_as_hooks_see_it() -> list[tuple[int, bool, int, list[tuple[int, ...]], int]]:
    seen: list[tuple[int, bool, int, list[tuple[int, ...]], int]] = []

    def look(state: object, bucket: Any) -> Any:
        shapes = [tuple(gradient.shape) for gradient in bucket.gradients()]
        assert [gradient.shape for gradient in bucket.gradients()] == [p.shape for p in bucket.parameters()]
        seen.append((bucket.index(), bucket.is_last(), bucket.buffer().numel(), shapes, len(bucket.parameters())))
        future: Future[Tensor] = Future()
        future.set_result(bucket.buffer())
        return future

    ours = BucketedDDP(nn.Linear(3, 2), bucket_cap_mb_list=[0])
    ours.register_comm_hook(None, look)
    for _ in range(2):
        ours(torch.ones(1, 3)).sum().backward()
    return seen


def test_a_hook_sees_index_buffer_gradients_and_parameters(gloo_pair: GlooPair) -> None:
    bias, weight = [(2,)], [(2, 3)]
    assert gloo_pair.run(bucket_as_hooks_see_it)[0] == [
        (0, False, 2, bias, 1), (1, True, 6, weight, 1),
        (0, False, 2, bias, 1), (1, True, 6, weight, 1),
    ]  # fmt: skip
