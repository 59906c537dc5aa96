"""Code to paste: the same as the one that was looked at, and a sentence for changes that cannot be."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from advisor.errors import UsageError
from advisor.frameworks import FRAMEWORKS, add_code, write_code
from advisor.schema import DDPConfig
from tests.builders import gloo_report, recommendation

GOLDEN = Path(__file__).parent.parent / "golden" / "frameworks"
TODAY = DDPConfig(world_size=8, backend="nccl", wrapper="torch", find_unused_parameters=True)
CHANGE = {
    "bucket_cap_mb": 25.0,
    "find_unused_parameters": False,
    "gradient_as_bucket_view": True,
    "accumulation_steps": 4,
    "comm_hook": "powersgd:2",
}
ON_CPU = msgspec.structs.replace(TODAY, backend="gloo")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_code_is_what_was_looked_at(framework: str) -> None:
    looked_at = (GOLDEN / f"{framework}.txt").read_text()
    assert write_code(CHANGE, TODAY, framework) == looked_at, "if the new code is right, store it in place of the old"


def test_a_report_gets_code_for_every_framework_where_a_setting_changes() -> None:
    report = gloo_report(recommendations=(recommendation(), recommendation(change={}, code={})))
    setting, other = add_code(report).recommendations
    assert list(setting.code) == list(FRAMEWORKS)
    assert "bucket_cap_mb=8," in setting.code["torch"]
    assert other.code == {}
    assert add_code(gloo_report(config=None)) == gloo_report(config=None)


def test_a_change_from_json_is_the_same() -> None:
    change = {"bucket_cap_mb_list": (1.0, 2.5)}
    assert write_code({"bucket_cap_mb_list": [1, 2.5]}, TODAY, "torch") == write_code(change, TODAY, "torch")


@pytest.mark.parametrize(
    ("framework", "change", "config", "expected", "unexpected"),
    [
        ("torch", {"bucket_cap_mb": None}, TODAY, "no bucket_cap_mb (today unset)", "bucket_cap_mb="),
        ("torch", {"bucket_cap_mb": 8.0}, TODAY, "device_ids=device_ids", "register_comm_hook"),
        ("torch", {"comm_hook": "bf16"}, TODAY, "default_hooks.bf16_compress_hook)", "send_bf16"),
        ("torch", {"comm_hook": "bf16"}, ON_CPU, "def send_bf16", "device_ids"),
        ("torch", {"comm_hook": "powersgd:4"}, ON_CPU, "from workloads.comm_hooks", "powerSGD_hook.powerSGD_hook"),
        ("torch", {"bucket_cap_mb_list": (1.0,)}, TODAY, "from the last launched one", "bucket_cap_mb="),
        ("accelerate", {"bucket_cap_mb": 24.0}, TODAY, "DistributedDataParallelKwargs(", "class DDPKwargs"),
        ("accelerate", {"bucket_cap_mb": 25.0}, TODAY, "class DDPKwargs", "kwargs_handlers"),
        ("accelerate", {"comm_hook": "fp16"}, TODAY, "comm_hook=DDPCommunicationHookType.FP16", "class DDPKwargs"),
        ("hf-trainer", {"bucket_cap_mb": 24.0}, TODAY, "ddp_find_unused_parameters=True", "class DDPKwargs"),
        ("hf-trainer", {"batched_grad_copy": True}, TODAY, "trainer.accelerator.ddp_handler", "ddp_find_unused"),
        ("lightning", {"comm_hook": "fp16"}, TODAY, "ddp_comm_hook=default_hooks.fp16_compress_hook", "OwnDDPStrategy"),
        ("lightning", {"comm_hook": "fp16"}, ON_CPU, "def configure_ddp", "ddp_comm_hook="),
        ("fabric", {"accumulation_steps": 4}, TODAY, "fabric.no_backward_sync(model, enabled=accumulates)", "Fabric("),
        ("mmengine", {"bucket_cap_mb": 8.0}, TODAY, "forward_sync_buffers=True", "device_ids"),
        ("mmengine", {"bucket_cap_mb": 8.0}, ON_CPU, "device_ids=None", "Runner"),
    ],
)
def test_code_works_around_what_a_framework_cannot_express(
    framework: str, change: dict[str, Any], config: DDPConfig, expected: str, unexpected: str
) -> None:
    code = re.sub(r"\n *# ", " ", write_code(change, config, framework))
    assert expected in code
    assert unexpected not in code


@pytest.mark.parametrize(
    ("change", "framework", "sentence"),
    [
        ({"bucket_cap_mb": 8.0}, "deepspeed", "There is no code for 'deepspeed': choose of torch, hf-trainer,"),
        ({"world_size": 4}, "torch", "world_size is nothing that code can change: choose of comm_hook,"),
        ({"bucket_cap_mb": "big"}, "torch", "does not fit DDP's settings: Expected `float | null`"),
        ({"comm_hook": "powersgd:0"}, "torch", "There is no comm hook 'powersgd:0' to write code for."),
        ({"accumulation_steps": 0}, "torch", "0 micro-steps a step cannot be meant: give 1 or more."),
    ],
)
def test_what_cannot_be_written_is_told_in_a_sentence(change: dict[str, Any], framework: str, sentence: str) -> None:
    with pytest.raises(UsageError) as told:
        write_code(change, TODAY, framework)
    assert sentence in str(told.value)


def test_no_change_is_no_code() -> None:
    assert write_code({}, TODAY, "torch") == ""
