"""A change for the Trainer of transformers, which wraps through Accelerate.

**Source**: `Trainer._build_accelerator_args`, transformers 5.24.
"""

from __future__ import annotations

from dataclasses import replace

from advisor.frameworks.accelerate import DEFAULT_CAP, IMPORT_KWARGS, write_handler
from advisor.frameworks.change import (
    Argument,
    Change,
    explain,
    list_arguments,
    list_removals,
    say_accumulation,
)
from advisor.frameworks.hooks import SAVE, set_up_wrapped
from advisor.frameworks.lines import Snippet, write_call

NAMES = {
    "bucket_cap_mb": "ddp_bucket_cap_mb",
    "find_unused_parameters": "ddp_find_unused_parameters",
    "static_graph": "ddp_static_graph",
    "forward_sync_buffers": "ddp_broadcast_buffers",
}
"""DDP's arguments that TrainingArguments has, under its names."""
TRAINERS_DEFAULT = "Trainer's own default is True, except with activation checkpointing"
HANDLER = """\
# Trainer has no argument for all of this; beside this handler its ddp_ arguments do not count.
trainer.accelerator.ddp_handler = DDPKwargs()  # before train"""
SAVE_CALLBACK = f"""\
class SaveHookState(TrainerCallback):
    def on_save(self, args, state, control, **kwargs):  # on every rank
        {SAVE}"""


def write(change: Change) -> Snippet:
    """TrainingArguments as far as they go, and the handler of Trainer's accelerator where they do not."""
    imports = {"from transformers import Trainer", "from transformers import TrainingArguments"}
    before: list[str] = []
    after: list[str] = []
    arguments: list[Argument] = []
    if change.changes_wrapping and _fits_arguments(change):
        arguments = _write_training_arguments(change)
    elif change.changes_wrapping:
        setup = set_up_wrapped(change, "model")
        imports |= {IMPORT_KWARGS, *setup.imports}
        before = [*setup.definitions, write_handler(change)]
        after = [setup.load, HANDLER]
        if setup.has_checkpoint:
            imports.add("from transformers import TrainerCallback")
            before.append(SAVE_CALLBACK)
            after.append("trainer.add_callback(SaveHookState())")
    if change.accumulates:
        steps = str(change.target.accumulation_steps)
        arguments.append(Argument("gradient_accumulation_steps", steps, say_accumulation(change)))
    args = write_call("args = TrainingArguments", arguments, "output_dir")
    trainer = "trainer = Trainer(model, args, train_dataset=train_dataset)"
    return Snippet(frozenset(imports), (*before, f"{args}\n{trainer}", *after))


def _fits_arguments(change: Change) -> bool:
    given = {argument.name for argument in list_arguments(change) if argument.value is not None}
    has_hook = change.target.comm_hook != "none"
    is_default_cap = change.target.bucket_cap_mb == DEFAULT_CAP
    return given <= set(NAMES) and not (has_hook or is_default_cap or change.synchronises_first)


def _write_training_arguments(change: Change) -> list[Argument]:
    arguments = {argument.name: argument for argument in list_arguments(change)}
    if change.changes_wrapper:
        searches = str(change.target.find_unused_parameters)
        comment = "; ".join(filter(None, (explain("find_unused_parameters", change), TRAINERS_DEFAULT)))
        arguments["find_unused_parameters"] = Argument("find_unused_parameters", searches, comment)
    renamed = [replace(argument, name=NAMES.get(name, name)) for name, argument in arguments.items()]
    return renamed + list_removals(change)
