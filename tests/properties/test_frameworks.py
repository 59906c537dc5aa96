"""Whatever changes, the code compiles, names every field that changed, and looks as its formatter would leave it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from advisor.frameworks import FRAMEWORKS, write_code
from advisor.schema import DDPConfig

CAPS = st.floats(0.01, 1e4) | st.just(25.0)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "bucket_cap_mb": st.none() | CAPS,
    "bucket_cap_mb_list": st.none() | st.lists(CAPS, min_size=1, max_size=4).map(tuple),
    "comm_hook": st.sampled_from(["none", "allreduce", "fp16", "bf16", "noop", "powersgd:4"]),
    "accumulation_steps": st.integers(1, 64),
    "gradient_as_bucket_view": st.booleans(),
    "batched_grad_copy": st.booleans(),
    "static_graph": st.booleans(),
    "find_unused_parameters": st.booleans(),
    "skip_all_reduce_unused_params": st.booleans(),
    "forward_sync_buffers": st.booleans(),
}
CHANGES = st.fixed_dictionaries({}, optional=VALUES).filter(bool)
CONFIGS = st.builds(
    DDPConfig,
    world_size=st.integers(2, 64),
    backend=st.sampled_from(["gloo", "nccl", "unknown"]),
    wrapper=st.just("torch"),
    **VALUES,
)
LONGEST_LINE = 100


@given(change=CHANGES, config=CONFIGS, framework=st.sampled_from(list(FRAMEWORKS)))
def test_code_compiles_and_names_every_field_that_changed(
    change: dict[str, Any], config: DDPConfig, framework: str
) -> None:
    code = write_code(change, config, framework)
    ast.parse(code)
    assert all(name in code for name in change)
    prose = [line for line in code.splitlines() if "bucket_cap_mb_list" not in line]
    assert all(len(line) <= LONGEST_LINE for line in prose)


def test_code_is_formatted(tmp_path: Path) -> None:
    configs = [DDPConfig(world_size=2, backend=backend, wrapper="torch") for backend in ("gloo", "nccl")]
    for hook in ("none", "fp16", "bf16", "powersgd:4"):
        for number, config in enumerate(configs):
            for framework in FRAMEWORKS:
                change = {"comm_hook": hook, "static_graph": True, "accumulation_steps": 4, "batched_grad_copy": True}
                file = tmp_path / f"{framework}_{hook}_{number}.py".replace(":", "_")
                file.write_text(write_code(change, config, framework))
    options = ["--isolated", f"--line-length={LONGEST_LINE}", "--no-cache", "--quiet"]
    for command in (["format", "--check"], ["check", "--select=F,I,N", "--ignore=F821"]):
        subprocess.run([sys.executable, "-m", "ruff", *command, *options, "."], cwd=tmp_path, check=True)
