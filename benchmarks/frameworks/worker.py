"""One rank of a framework: runs each case's code and tells what DDP received. Started by torchrun, imports no advisor.

torchrun --nproc-per-node 2 worker.py FRAMEWORK CASES.json OUT
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

NUM_SAMPLES = 96
BATCH = 8
SETTINGS = (
    "gradient_as_bucket_view", "batched_grad_copy", "static_graph", "find_unused_parameters",
    "skip_all_reduce_unused_params", "forward_sync_buffers",
)  # fmt: skip


class Net(nn.Module):
    """A model as HF's Trainer, MMEngine and loops of one's own call it, with buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Linear(64, 4))

    def forward(self, inputs: Tensor, labels: Tensor | None = None, mode: str = "") -> Any:
        """The outputs, or with labels a dictionary with the loss."""
        outputs = self.layers(inputs)
        return outputs if labels is None else {"loss": nn.functional.mse_loss(outputs, labels)}


def own_samples() -> TensorDataset:
    """Inputs and targets."""
    return TensorDataset(torch.randn(NUM_SAMPLES, 16), torch.randn(NUM_SAMPLES, 4))


def own_names() -> dict[str, Any]:
    """What a reader has at hand."""
    torch.manual_seed(0)
    model = Net()
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loader": DataLoader(own_samples(), batch_size=BATCH),
        "loss_fn": nn.functional.mse_loss,
        "max_norm": 1.0,
        "resumes": False,
    }


def run_accelerate(code: str) -> None:
    """The code prepares, and trains where it has a loop."""
    names = own_names()
    exec(code, names)
    if "accumulate" not in code.rpartition("accelerator.prepare")[2]:
        train(names, names["accelerator"].backward)


def run_fabric(code: str) -> None:
    """The code sets up or trains; the rest is what a reader has around it."""
    from lightning.fabric import Fabric
    from lightning.fabric.strategies import DDPStrategy

    names = own_names()
    if "Fabric(" not in code:
        names["fabric"] = Fabric(strategy=DDPStrategy())
        names["fabric"].launch()
        names["model"], names["optimizer"] = names["fabric"].setup(names["model"], names["optimizer"])
    exec(code, names)
    if "no_backward_sync" not in code:
        train(names, names["fabric"].backward)


def train(names: dict[str, Any], backward: Callable[[Tensor], None]) -> None:
    """A loop without accumulation."""
    for inputs, targets in names["loader"]:
        backward(names["loss_fn"](names["model"](inputs), targets))
        names["optimizer"].step()
        names["optimizer"].zero_grad()


def run_hf_trainer(code: str) -> None:
    """The code makes a Trainer."""
    samples = [{"inputs": torch.randn(16), "labels": torch.randn(4)} for _ in range(NUM_SAMPLES)]
    names = own_names() | {"output_dir": "trainer", "train_dataset": samples}
    exec(code, names)
    names["trainer"].args.save_steps = 2
    names["trainer"].train()


def run_lightning(code: str) -> None:
    """The code makes a Trainer."""
    from lightning.pytorch import LightningModule

    class Module(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Any:
            return self.net(*batch)["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    names = own_names()
    exec(code, names)
    names["trainer"].fit(Module(), names["loader"])


def run_mmengine(code: str) -> None:
    """The code holds entries of a config, and statements once the runner is built from it."""
    if not dist.is_initialized():  # MMEngine's own start of the ranks needs CUDA
        dist.init_process_group("gloo")
    from mmengine.model import BaseModel
    from mmengine.registry import DATASETS, MODELS
    from mmengine.runner import Runner

    @MODELS.register_module(force=True)
    class Model(BaseModel):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def forward(self, inputs: Tensor, labels: Tensor, mode: str = "tensor") -> Any:
            return self.net(inputs, labels)

    DATASETS.register_module("Samples", force=True, module=own_samples)
    names = own_names() | {"optimizer": {"type": "SGD", "lr": 0.1}, "clip_grad": {"max_norm": 1}}
    entries, builds, after = code.partition("runner = Runner.from_cfg(cfg)")
    exec(entries, names)
    names["cfg"] = {
        "model": {"type": "Model"},
        "work_dir": "mmengine",
        "experiment_name": f"case{len(list(Path().iterdir()))}_{os.urandom(4).hex()}",
        "train_dataloader": {
            "batch_size": BATCH,
            "dataset": {"type": "Samples"},
            "sampler": {"type": "DefaultSampler", "shuffle": False},
            "collate_fn": {"type": "default_collate"},
        },
        "train_cfg": {"by_epoch": True, "max_epochs": 1},
        "optim_wrapper": names.get("optim_wrapper", {"optimizer": names["optimizer"]}),
        "model_wrapper_cfg": names.get(
            "model_wrapper_cfg", {"type": "MMDistributedDataParallel", "device_ids": None, "broadcast_buffers": False}
        ),
        "launcher": "pytorch",
        "env_cfg": {"dist_cfg": {"backend": "gloo"}},
    }
    if builds:
        exec(builds + after, names)
    else:
        names["runner"] = Runner.from_cfg(names["cfg"])
    names["runner"].train()


RUNS: dict[str, Callable[[str], None]] = {
    "accelerate": run_accelerate,
    "hf-trainer": run_hf_trainer,
    "lightning": run_lightning,
    "fabric": run_fabric,
    "mmengine": run_mmengine,
}


def watch(run: Callable[[str], None], code: str) -> dict[str, Any]:
    """Runs the code and tells what the model that ran last was given, and which of its forwards were to synchronise."""
    seen: list[tuple[DistributedDataParallel, bool]] = []

    def look(module: nn.Module, args: Any) -> None:
        if isinstance(module, DistributedDataParallel) and torch.is_grad_enabled():
            seen.append((module, module.require_backward_grad_sync))

    with register_module_forward_pre_hook(look):
        run(code)
    ddp: Any = seen[-1][0]  # torch's own account of itself has no types
    caps = ddp._bucket_config
    limits = caps.per_bucket_bytes_caps or dict.fromkeys([caps.first_bucket_bytes_cap, caps.bucket_bytes_cap])
    return {
        "settings": {name: bool(getattr(ddp, name)) for name in SETTINGS},
        "limits": list(limits),
        "hook": ddp._get_ddp_logging_data().get("comm_hook", ""),
        "synchronised": [synchronises for module, synchronises in seen if module is ddp],
    }


def main() -> None:
    """Runs the cases in turn; each one's answer is there once it is done, so a crash costs only those after it."""
    framework, cases, out = sys.argv[1:]
    folder = Path(out).absolute()
    listed = json.loads(Path(cases).read_text())
    os.chdir(folder)
    for number, case in enumerate(listed):
        received = watch(RUNS[framework], case["code"])
        file = folder / f"{number}.rank{os.environ['RANK']}.json"
        file.write_text(json.dumps(received))


main()
