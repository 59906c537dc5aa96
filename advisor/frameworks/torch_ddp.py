"""A change for a training loop of one's own around DistributedDataParallel."""

from __future__ import annotations

from advisor.frameworks.change import Argument, Change, list_arguments, list_removals, say_accumulation
from advisor.frameworks.hooks import SAVE, Hook, describe_hook
from advisor.frameworks.lines import Snippet, indent, write_call, write_comment

IMPORT_DDP = "from torch.nn.parallel import DistributedDataParallel"
STEP = """\
scaler.unscale_(optimizer)  # clipping needs the true gradients
torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
scaler.step(optimizer)
scaler.update()
optimizer.zero_grad()"""
PLAIN_LOOP = f"""\
for inputs, targets in loader:  # every backward synchronises: no no_sync, no division of the loss
    loss = loss_fn(model(inputs), targets)
    scaler.scale(loss).backward()  # a GradScaler, with enabled=False unless float16 needs it
{indent(STEP)}"""
LOOP = """\
accumulation_steps = {steps}
for micro_step, (inputs, targets) in enumerate(loader, start=1):
    is_last = micro_step % accumulation_steps == 0 or micro_step == len(loader)
{synchronises}\
    # Forward decides whether backward synchronises, so no_sync goes around both.
    with nullcontext() if {condition} else model.no_sync():
        loss = loss_fn(model(inputs), targets) / accumulation_steps
        scaler.scale(loss).backward()  # a GradScaler, with enabled=False unless float16 needs it
    if is_last:
{step}"""
FIRST_SYNCHRONISES = """\
    # torch fails if a static graph's first backward lies inside no_sync (pytorch#143580).
    synchronises = is_last or micro_step == 1
"""


def write(change: Change) -> Snippet:
    """The constructor, the hook's registration and the loop, each where it changes."""
    imports: set[str] = set()
    blocks: list[str] = []
    hook = describe_hook(change) if change.changes_hook else None
    if change.changes_wrapper:
        imports.add(IMPORT_DDP)
        blocks.append(_wrap(change))
    if hook is not None:
        imports.update(hook.imports)
        blocks += [hook.definition, _register(hook)]
    blocks += [write_comment(removal.comment) for removal in list_removals(change)]
    if change.changes_accumulation:
        imports.add("import torch")
        blocks.append(_write_loop(change))
        if change.target.accumulation_steps > 1:
            imports.add("from contextlib import nullcontext")
    if hook is not None and hook.has_checkpoint:
        blocks.append(f"# On every rank, beside each checkpoint:\n{SAVE}")
    return Snippet(frozenset(imports), tuple(blocks))


def _wrap(change: Change) -> str:
    devices = [] if change.target.backend == "gloo" else [Argument("device_ids", "device_ids", "[local_rank] on a GPU")]
    return write_call("model = DistributedDataParallel", [*devices, *list_arguments(change)], "model")


def _register(hook: Hook) -> str:
    once = write_comment("Once, after wrapping and before the first backward.")
    return "\n".join(filter(None, (hook.load, once, hook.register("model"))))


def _write_loop(change: Change) -> str:
    """Optimizer steps of `accumulation_steps` micro-steps, of which only the last one synchronises."""
    effect = write_comment(say_accumulation(change))
    if change.target.accumulation_steps == 1:
        return f"{effect}\n{PLAIN_LOOP}"
    loop = LOOP.format(
        steps=change.target.accumulation_steps,
        synchronises=FIRST_SYNCHRONISES if change.synchronises_first else "",
        condition="synchronises" if change.synchronises_first else "is_last",
        step=indent(STEP, 2),
    )
    return f"{effect}\n{loop}" if effect else loop
