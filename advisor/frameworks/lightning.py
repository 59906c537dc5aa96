"""A change for Lightning's Trainer: `DDPStrategy`, which hands its arguments on to DDP.

Lightning registers `ddp_comm_hook` only on CUDA and is silent about it elsewhere, so elsewhere the strategy does it.
**Source**: `DDPStrategy._register_ddp_hooks`, lightning 2.6.
"""

from __future__ import annotations

from advisor.frameworks.change import Argument, Change, list_arguments, list_removals, say_accumulation
from advisor.frameworks.hooks import SAVE, WrappedSetup, describe_hook, set_up_wrapped
from advisor.frameworks.lines import Snippet, indent, write_call

OWN_STRATEGY = """\
class OwnDDPStrategy(DDPStrategy):
    # Lightning has no place for this: its ddp_comm_hook is silently left out off CUDA, and takes
    # its state before ranks are known.
    def configure_ddp(self):
        super().configure_ddp()
{statements}"""
KEEP_STATE = "self.hook_state, self.hook_file = hook_state, hook_file"
SAVE_CALLBACK = f"""\
class SaveHookState(Callback):
    def on_save_checkpoint(self, trainer, pl_module, checkpoint):  # on every rank
        hook_state, hook_file = trainer.strategy.hook_state, trainer.strategy.hook_file
        {SAVE}"""
LIGHTNING_ACCUMULATES = "Lightning keeps the other micro-steps in no_sync and divides the loss"


def write(change: Change) -> Snippet:
    """The Trainer with its strategy, which registers the hook itself where Lightning would not."""
    imports = {"from lightning.pytorch import Trainer"}
    definitions: list[str] = []
    arguments: list[Argument] = []
    setup = set_up_wrapped(change, "self.model")
    if change.changes_wrapping:
        imports |= {"from lightning.pytorch.strategies import DDPStrategy", *setup.imports}
        strategy = list_arguments(change) + list_removals(change)
        needs_own = _needs_own_strategy(change, setup)
        hook = describe_hook(change)
        if needs_own:
            definitions = [*setup.definitions, _write_own_strategy(setup)]
        elif hook is not None:
            strategy.append(Argument("ddp_comm_hook", hook.function, hook.note))
        call = write_call("OwnDDPStrategy" if needs_own else "DDPStrategy", strategy)
        arguments.append(Argument("strategy", indent(call).lstrip()))
        if setup.has_checkpoint:
            imports.add("from lightning.pytorch import Callback")
            definitions.append(SAVE_CALLBACK)
            arguments.append(Argument("callbacks", "[SaveHookState()]"))
    if change.accumulates:
        comment = say_accumulation(change, LIGHTNING_ACCUMULATES)
        arguments.append(Argument("accumulate_grad_batches", str(change.target.accumulation_steps), comment))
    return Snippet(frozenset(imports), (*definitions, write_call("trainer = Trainer", arguments)))


def _needs_own_strategy(change: Change, setup: WrappedSetup) -> bool:
    """Lightning's own way is left for stateless hooks on GPUs."""
    return bool(setup.load) or change.synchronises_first or (bool(setup.statements) and not change.on_gpus)


def _write_own_strategy(setup: WrappedSetup) -> str:
    statements = [setup.load, *setup.statements, KEEP_STATE if setup.has_checkpoint else ""]
    return OWN_STRATEGY.format(statements=indent("\n".join(filter(None, statements)), 2))
