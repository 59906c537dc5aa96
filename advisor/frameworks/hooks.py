"""Comm hooks as code: what torch has, and the way around where torch's own fails or hangs.

torch refuses its bf16 hook by its name where there is no NCCL, and its PowerSGD hook hangs on gloo with two buckets, so
there the first is renamed and the second is ours. **Source**: `_check_comm_hook` and `ddp_comm_hooks/`, torch 2.13;
pytorch#48478.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from advisor.frameworks.change import Change
from advisor.frameworks.lines import write_comment

IMPORT_HOOKS = "from torch.distributed.algorithms.ddp_comm_hooks import {}"
FIRST_STEPS = 1000
"""Steps of plain all-reduce before PowerSGD compresses: torch's default."""

LOAD_POWERSGD = """\
# What compression misses stays on its rank, so each rank saves and loads its own file.
hook_file = f"powersgd_rank{{dist.get_rank()}}.pt"
if resumes:  # whether this run continues from a checkpoint
    hook_state = torch.load(hook_file, weights_only=False)
else:
    hook_state = powerSGD_hook.PowerSGDState(
        None,
        matrix_approximation_rank={rank},
        # Plain all-reduces until then: a shorter run gains nothing.
        start_powerSGD_iter={first_steps},
    )"""
OUR_POWERSGD = """\
# torch's own PowerSGD hook hangs on gloo. This one comes with "ddp-advisor[workloads]" and
# keeps no state in checkpoints: a run that resumes begins with plain all-reduces again.
hook_state = PowerSGD({rank}, dist.group.WORLD, start_step={first_steps})"""
RENAMED_BF16 = '''\
def send_bf16(state, bucket):
    """torch's own hook under another name: torch refuses it by name where there is no NCCL."""
    return default_hooks.bf16_compress_hook(state, bucket)'''
SYNCHRONISE_FIRST = '''\
def synchronise_first(ddp):
    """Torch fails if a static graph's first backward lies inside no_sync (pytorch#143580)."""
    contexts = chain([nullcontext()], iter(ddp.no_sync, None))
    ddp.no_sync = lambda: next(contexts)'''
NOTES = {
    "noop": "Only to measure how fast the step would be without communication: it averages nothing.",
    "fp16": "Gradients beyond 65504 become inf, and those below 6e-8 become 0; bf16 has neither trouble.",
}

SAVE = "torch.save(hook_state, hook_file)"


@dataclass(frozen=True)
class Hook:
    """What registers a hook: `ddp.register_comm_hook(<state>, <function>)`."""

    imports: tuple[str, ...]
    function: str
    state: str = "None"
    definition: str = ""
    """A function to define first."""
    load: str = ""
    """Statements that make `hook_state`, once the process group is up."""
    has_checkpoint: bool = False
    note: str = ""

    def register(self, ddp: str) -> str:
        """The statement that registers it on `ddp`."""
        register = f"{ddp}.register_comm_hook({self.state}, {self.function})"
        return f"{write_comment(self.note)}\n{register}" if self.note else register


def describe_hook(change: Change) -> Hook | None:
    """The hook after the change; None where there is none."""
    kind, _, rank = change.target.comm_hook.partition(":")
    if kind == "none":
        return None
    if kind == "powersgd":
        return _describe_powersgd(rank, torchs_own=change.on_gpus)
    if kind == "noop":
        return Hook((IMPORT_HOOKS.format("debugging_hooks"),), "debugging_hooks.noop_hook", note=NOTES[kind])
    imports = (IMPORT_HOOKS.format("default_hooks"),)
    if kind == "bf16" and not change.on_gpus:
        return Hook(imports, "send_bf16", definition=RENAMED_BF16)
    functions = {"allreduce": "allreduce_hook", "fp16": "fp16_compress_hook", "bf16": "bf16_compress_hook"}
    return Hook(imports, f"default_hooks.{functions[kind]}", note=NOTES.get(kind, ""))


@dataclass(frozen=True)
class WrappedSetup:
    """What must be done to the wrapped model itself, where a framework wraps."""

    imports: tuple[str, ...] = ()
    definitions: tuple[str, ...] = ()
    load: str = ""
    """Statements for when the process group is up."""
    statements: tuple[str, ...] = ()
    """Statements for when the model is wrapped."""
    has_checkpoint: bool = False


def set_up_hook(change: Change, ddp: str) -> WrappedSetup:
    """Registers the hook on the wrapped model `ddp`."""
    hook = describe_hook(change)
    if hook is None:
        return WrappedSetup()
    definitions = (hook.definition,) if hook.definition else ()
    return WrappedSetup(hook.imports, definitions, hook.load, (hook.register(ddp),), hook.has_checkpoint)


def set_up_wrapped(change: Change, ddp: str) -> WrappedSetup:
    """Registers the hook on the wrapped model `ddp`, and makes a static graph's first backward synchronise.

    For frameworks that decide by themselves which micro-steps synchronise.
    """
    setup = set_up_hook(change, ddp)
    if not change.synchronises_first:
        return setup
    return replace(
        setup,
        imports=(*setup.imports, "from contextlib import nullcontext", "from itertools import chain"),
        definitions=(*setup.definitions, SYNCHRONISE_FIRST),
        statements=(*setup.statements, f"synchronise_first({ddp})"),
    )


def _describe_powersgd(rank: str, *, torchs_own: bool) -> Hook:
    if not torchs_own:
        return Hook(
            (
                "import torch.distributed as dist",
                "from workloads.comm_hooks import PowerSGD",
                "from workloads.comm_hooks import powersgd_hook",
            ),
            "powersgd_hook",
            "hook_state",
            load=OUR_POWERSGD.format(rank=rank, first_steps=FIRST_STEPS),
        )
    return Hook(
        ("import torch", "import torch.distributed as dist", IMPORT_HOOKS.format("powerSGD_hook")),
        "powerSGD_hook.powerSGD_hook",
        "hook_state",
        load=LOAD_POWERSGD.format(rank=rank, first_steps=FIRST_STEPS),
        has_checkpoint=True,
    )
