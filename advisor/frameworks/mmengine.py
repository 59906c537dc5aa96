"""A change for MMEngine: two entries of its config, and the hook on the runner's model.

With a `model_wrapper_cfg` the defaults are DDP's; without one MMEngine sets broadcast_buffers=False. It always passes
device_ids, which DDP refuses on a CPU. **Source**: `Runner.wrap_model`, mmengine 0.10.7.
"""

from __future__ import annotations

from dataclasses import replace

from advisor.frameworks.change import Argument, Change, list_arguments, list_removals, say_accumulation
from advisor.frameworks.hooks import SAVE, set_up_wrapped
from advisor.frameworks.lines import Snippet, write_call

BUFFERS = "without model_wrapper_cfg MMEngine has False, with it DDP has True"
NO_DEVICES = "MMEngine passes [LOCAL_RANK] otherwise, which DDP refuses on a CPU"
MMENGINE_ACCUMULATES = "MMEngine keeps the other micro-steps in no_sync and divides the loss"
SAVE_HOOK = f"""\
class SaveHookState(Hook):
    # Only rank 0 saves checkpoints, so this is no part of theirs.
    def after_train_epoch(self, runner):
        {SAVE}"""


def write(change: Change) -> Snippet:
    """The entries of the config that change, and what the runner's model needs before training."""
    imports: set[str] = set()
    before: list[str] = []
    after: list[str] = []
    if change.changes_wrapping:
        before.append(write_call("model_wrapper_cfg = dict", _list_wrapper_entries(change)))
    if change.accumulates:
        comment = say_accumulation(change, MMENGINE_ACCUMULATES)
        entries = [
            Argument("type", '"OptimWrapper"', "AmpOptimWrapper for mixed precision: it unscales, then clips"),
            Argument("optimizer", "optimizer"),
            Argument("clip_grad", "clip_grad", "such as dict(max_norm=1), or None"),
            Argument("accumulative_counts", str(change.target.accumulation_steps), comment),
        ]
        before.append(write_call("optim_wrapper = dict", entries))
    setup = set_up_wrapped(change, "runner.model")
    if change.changes_wrapping and setup.statements:
        imports |= {"from mmengine.runner import Runner", *setup.imports}
        statements = "\n".join(filter(None, (setup.load, *setup.statements)))
        after = [*setup.definitions, f"runner = Runner.from_cfg(cfg)  # with these entries\n{statements}"]
        if setup.has_checkpoint:
            imports.add("from mmengine.hooks import Hook")
            after.insert(0, SAVE_HOOK)
            after.append("runner.register_hook(SaveHookState())")
    return Snippet(frozenset(imports), (*before, *after))


def _list_wrapper_entries(change: Change) -> list[Argument]:
    arguments = {argument.name: argument for argument in list_arguments(change)}
    buffers = arguments.pop("forward_sync_buffers", Argument("", str(change.target.forward_sync_buffers)))
    comment = "; ".join(filter(None, (buffers.comment, BUFFERS)))
    return [
        Argument("type", '"MMDistributedDataParallel"'),
        *([] if change.on_gpus else [Argument("device_ids", "None", NO_DEVICES)]),
        *arguments.values(),
        replace(buffers, name="forward_sync_buffers", comment=comment),
        *list_removals(change),
    ]
