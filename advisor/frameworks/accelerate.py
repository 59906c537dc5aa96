"""A change for Accelerate: `DistributedDataParallelKwargs`, or a subclass where that cannot express it.

Accelerate hands on only what differs from its own defaults, so a cap of 25 MiB would become unset. It takes no handler
of a subclass as argument, so the attribute that holds the handler is set instead. **Source**: `Accelerator.__init__`,
`KwargsHandler.to_kwargs`, accelerate 1.15.
"""

from __future__ import annotations

from dataclasses import replace

from advisor.frameworks.change import Argument, Change, list_arguments, list_removals, say_accumulation
from advisor.frameworks.hooks import SAVE, describe_hook, set_up_wrapped
from advisor.frameworks.lines import Snippet, indent, write_call

IMPORT_KWARGS = "from accelerate.utils import DistributedDataParallelKwargs"
NAMES = {
    "bucket_cap_mb": "bucket_cap_mb",
    "find_unused_parameters": "find_unused_parameters",
    "gradient_as_bucket_view": "gradient_as_bucket_view",
    "static_graph": "static_graph",
    "forward_sync_buffers": "broadcast_buffers",
}
"""DDP's arguments that DistributedDataParallelKwargs has, under its names."""
HOOKS = {"fp16": "DDPCommunicationHookType.FP16", "bf16": "DDPCommunicationHookType.BF16"}
DEFAULT_CAP = 25.0
"""What Accelerate takes for unset."""

HANDLER = """\
class DDPKwargs(DistributedDataParallelKwargs):
    # Accelerate hands on only what differs from its own defaults, and knows neither all arguments
    # of DDP nor all hooks. With this one DDP gets exactly what stands here.
    def to_kwargs(self):
        return {arguments}"""
REGISTER = """

    def register_comm_hook(self, model):
{statements}"""
LOOP = """\
for inputs, targets in loader:
    with accelerator.accumulate(model):  # no_sync around forward and backward of all but the last
        loss = loss_fn(model(inputs), targets)
        accelerator.backward(loss)  # divides by gradient_accumulation_steps
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), max_norm)  # unscales first
        optimizer.step()  # this and zero_grad do nothing while gradients accumulate
        optimizer.zero_grad()"""


def write(change: Change) -> Snippet:
    """The handler where wrapping changes, the loop where accumulation does."""
    imports = {"from accelerate import Accelerator"}
    before: list[str] = []
    after: list[str] = []
    arguments: list[Argument] = []
    setup = set_up_wrapped(change, "model")
    if change.accumulates:
        steps = str(change.target.accumulation_steps)
        arguments.append(Argument("gradient_accumulation_steps", steps, say_accumulation(change)))
    if change.changes_wrapping and fits_own_handler(change):
        imports.add(IMPORT_KWARGS)
        if describe_hook(change) is not None:
            imports.add("from accelerate.utils import DDPCommunicationHookType")
        before = [_write_own_handler(change)]
        arguments.append(Argument("kwargs_handlers", "[ddp_kwargs]"))
    elif change.changes_wrapping:
        imports |= {IMPORT_KWARGS, *setup.imports}
        before = [*setup.definitions, write_handler(change)]
        after = [setup.load, "accelerator.ddp_handler = DDPKwargs()  # before prepare"]
    accelerator = write_call("accelerator = Accelerator", arguments)
    prepare = "model, optimizer, loader = accelerator.prepare(model, optimizer, loader)"
    loop = LOOP if change.changes_accumulation else ""
    save = f"# On every rank, beside each accelerator.save_state():\n{SAVE}" if setup.has_checkpoint else ""
    return Snippet(frozenset(imports), (*before, accelerator, *after, prepare, loop, save))


def fits_own_handler(change: Change) -> bool:
    """Whether DistributedDataParallelKwargs can express all settings."""
    given = {argument.name for argument in list_arguments(change) if argument.value is not None}
    hooks = {"none", *HOOKS} if change.on_gpus else {"none", "fp16"}
    return (
        given <= set(NAMES)
        and change.target.bucket_cap_mb != DEFAULT_CAP
        and change.target.comm_hook in hooks
        and not change.synchronises_first
    )


def write_handler(change: Change) -> str:
    """A handler that hands exactly DDP's arguments on."""
    arguments = write_call("dict", list_arguments(change) + list_removals(change))
    handler = HANDLER.format(arguments=indent(arguments, 2).lstrip())
    statements = set_up_wrapped(change, "model").statements
    return handler + REGISTER.format(statements=indent("\n".join(statements), 2)) if statements else handler


def _write_own_handler(change: Change) -> str:
    arguments = [replace(argument, name=NAMES.get(argument.name, argument.name)) for argument in list_arguments(change)]
    hook = describe_hook(change)
    if hook is not None:
        arguments.append(Argument("comm_hook", HOOKS[change.target.comm_hook], hook.note))
    return write_call("ddp_kwargs = DistributedDataParallelKwargs", arguments + list_removals(change))
