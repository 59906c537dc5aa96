"""Which PowerSGD a name registers: ours on gloo, torch's own on NCCL, for which its cost is predicted."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

from advisor.errors import UsageError
from workloads.comm_hooks import PowerSGD, powersgd_hook, register_named_hook


class Wrapper:
    """What a hook is registered on."""

    process_group = None

    def register_comm_hook(self, state: object, hook: Any) -> None:
        self.state, self.hook = state, hook


@pytest.mark.parametrize(
    ("backend", "state", "hook"),
    [
        ("gloo", PowerSGD, powersgd_hook),
        ("nccl", powerSGD_hook.PowerSGDState, powerSGD_hook.powerSGD_hook),
    ],
)
def test_each_backend_has_the_powersgd_that_is_safe_there(
    monkeypatch: pytest.MonkeyPatch, backend: str, state: type, hook: object
) -> None:
    monkeypatch.setattr(dist, "get_backend", lambda group: backend)
    wrapper = Wrapper()
    register_named_hook(wrapper, "powersgd:3", powersgd_start_step=5)
    assert isinstance(wrapper.state, state)
    assert (wrapper.state.matrix_approximation_rank, wrapper.hook) == (3, hook)
    with pytest.raises(UsageError, match="settled"):
        register_named_hook(wrapper, "powersgd:3", powersgd_start_step=2)
