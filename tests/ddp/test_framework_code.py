"""The code for a training loop of one's own, executed: torch's DDP gets what changed, and trains as it says."""

from __future__ import annotations

import copy
import warnings
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel

from advisor.bucketing import bucket_limits
from advisor.frameworks import write_code
from advisor.frameworks.change import WRAPPER_ARGUMENTS, plan_change
from advisor.frameworks.hooks import SAVE
from advisor.schema import DDPConfig
from tests.ddp.parity import difference
from tests.gloo_pair import GlooPair

NUM_BATCHES = 6
TODAY = DDPConfig(world_size=2, backend="gloo", wrapper="torch")
BUSY = DDPConfig(
    world_size=2, backend="gloo", wrapper="torch", bucket_cap_mb=8.0, find_unused_parameters=True, accumulation_steps=3
)
ON_GPUS = DDPConfig(world_size=2, backend="nccl", wrapper="torch")
HOOKS = {
    "none": "",
    "allreduce": "allreduce_hook",
    "fp16": "fp16_compress_hook",
    "bf16": "send_bf16",
    "noop": "noop_hook",
    "powersgd:2": "powersgd_hook",
}
LOSSY = {"fp16_compress_hook", "send_bf16", "noop_hook"}


@dataclass
class Outcome:
    """What DDP was given, and what it did."""

    settings: dict[str, Any]
    limits: list[int]
    hook: str
    synchronised: list[bool]
    """For every forward, whether its backward was to synchronise."""
    to_large_batches: float
    """Largest difference to parameters that were trained on the micro-batches of a step at once."""
    num_hook_steps: int
    """Those that torch's PowerSGD has counted."""


def execute(code: str, config: DDPConfig, folder: str, *, resumes: bool = False) -> Outcome:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))
    reference = copy.deepcopy(model)
    torch.manual_seed(1 + dist.get_rank())
    loader = [(torch.randn(4, 16), torch.randn(4, 4)) for _ in range(NUM_BATCHES)]
    names: dict[str, Any] = {
        "model": model if "DistributedDataParallel(" in code else DistributedDataParallel(model),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loader": loader,
        "loss_fn": nn.functional.mse_loss,
        "scaler": torch.amp.GradScaler("cpu", enabled=False),
        "max_norm": 1.0,
        "device_ids": None,
        "resumes": resumes,
    }
    synchronised: list[bool] = []

    def watch(module: nn.Module, args: Any) -> None:
        if isinstance(module, DistributedDataParallel):
            synchronised.append(module.require_backward_grad_sync)

    with register_module_forward_pre_hook(watch), warnings.catch_warnings(), chdir(folder):
        warnings.simplefilter("ignore")  # torch tells static_graph users to leave find_unused_parameters out
        exec(compile(code, "pasted", "exec"), names)
        ddp = names["model"]
        if not synchronised:
            train(ddp, names["optimizer"], loader)
    train_at_once(reference, loader, config.accumulation_steps)
    return Outcome(
        settings={name: getattr(ddp, name) for name in WRAPPER_ARGUMENTS if not name.startswith("bucket_cap")},
        limits=read_limits(ddp),
        hook=ddp._get_ddp_logging_data().get("comm_hook", ""),
        synchronised=synchronised,
        to_large_batches=difference(ddp.module, reference),
        num_hook_steps=getattr(names.get("hook_state"), "iter", 0),
    )


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[tuple[Tensor, Tensor]]) -> None:
    for inputs, targets in batches:
        nn.functional.mse_loss(model(inputs), targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def train_at_once(model: nn.Module, batches: list[tuple[Tensor, Tensor]], steps: int) -> None:
    large = [
        tuple(torch.cat(parts) for parts in zip(*batches[start : start + steps], strict=True))
        for start in range(0, len(batches), steps)
    ]
    train(DistributedDataParallel(model), torch.optim.SGD(model.parameters(), lr=0.1), large)


def read_limits(ddp: DistributedDataParallel) -> list[int]:
    caps = ddp._bucket_config
    uniform = dict.fromkeys([caps.first_bucket_bytes_cap, caps.bucket_bytes_cap])
    return list(caps.per_bucket_bytes_caps or uniform)


def expect_synchronised(config: DDPConfig) -> list[bool]:
    return [
        (number + 1) % config.accumulation_steps == 0 or (config.static_graph and number == 0)
        for number in range(NUM_BATCHES)
    ]


CHANGES: list[tuple[DDPConfig, dict[str, Any]]] = [
    (TODAY, {"bucket_cap_mb": 0.01}),
    (TODAY, {"bucket_cap_mb": 25.0}),
    (BUSY, {"bucket_cap_mb": None}),
    (TODAY, {"bucket_cap_mb_list": (0.001, 0.01, 2.0)}),
    (TODAY, {"gradient_as_bucket_view": True}),
    (TODAY, {"batched_grad_copy": True}),
    (TODAY, {"static_graph": True}),
    (TODAY, {"find_unused_parameters": True}),
    (BUSY, {"find_unused_parameters": False}),
    (TODAY, {"skip_all_reduce_unused_params": True, "find_unused_parameters": True}),
    (TODAY, {"forward_sync_buffers": False}),
    (TODAY, {"accumulation_steps": 3}),
    (BUSY, {"accumulation_steps": 1}),
    *((TODAY, {"comm_hook": name}) for name in HOOKS),
    (TODAY, {"bucket_cap_mb": 0.01, "gradient_as_bucket_view": True, "accumulation_steps": 2, "comm_hook": "fp16"}),
    (TODAY, {"static_graph": True, "accumulation_steps": 3, "comm_hook": "allreduce"}),
    (BUSY, {"bucket_cap_mb_list": (0.01,), "find_unused_parameters": False, "static_graph": True}),
]


@pytest.mark.parametrize(("today", "change"), CHANGES, ids=lambda value: "+".join(value) if type(value) is dict else "")
def test_torch_gets_what_changed_and_trains_as_before(
    gloo_pair: GlooPair, tmp_path: Path, today: DDPConfig, change: dict[str, Any]
) -> None:
    plan = plan_change(change, today)
    wrapped = plan.target if plan.changes_wrapper else TODAY
    run = plan.target if plan.changes_accumulation else TODAY
    hook = HOOKS[change.get("comm_hook", "none")]
    for outcome in gloo_pair.run(execute, write_code(change, today, "torch"), run, str(tmp_path)):
        assert outcome.settings == {name: getattr(wrapped, name) for name in outcome.settings}
        assert outcome.limits == list(bucket_limits(wrapped.bucket_cap_mb, wrapped.bucket_cap_mb_list))
        assert outcome.hook.rpartition(".")[2] == hook
        assert outcome.synchronised == expect_synchronised(run)
        assert outcome.to_large_batches < 1e-6 or hook in LOSSY


def test_torchs_powersgd_goes_on_where_a_checkpoint_left_it(gloo_pair: GlooPair, tmp_path: Path) -> None:
    code = write_code({"comm_hook": "powersgd:2"}, ON_GPUS, "torch")
    one_step = "loss_fn(model(loader[0][0]), loader[0][1]).backward()"
    code = code.replace(SAVE, f"{one_step}\n{SAVE}")
    for resumes, num_steps in ((False, 1), (True, 2)):
        outcomes = gloo_pair.run(execute, code, TODAY, str(tmp_path), resumes=resumes)
        assert [(outcome.hook, outcome.num_hook_steps) for outcome in outcomes] == [("powerSGD_hook", num_steps)] * 2
    assert sorted(file.name for file in tmp_path.iterdir()) == ["powersgd_rank0.pt", "powersgd_rank1.pt"]
