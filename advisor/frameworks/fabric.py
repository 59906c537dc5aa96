"""A change for Lightning Fabric: `DDPStrategy`, and a loop of one's own.

Fabric's wrapper hides DDP, so a strategy of one's own registers hooks when the model is wrapped. **Source**:
`DDPStrategy.setup_module`, `Fabric.no_backward_sync`, lightning 2.6.
"""

from __future__ import annotations

from advisor.frameworks.change import Argument, Change, list_arguments, list_removals, say_accumulation
from advisor.frameworks.hooks import SAVE, set_up_hook
from advisor.frameworks.lines import Snippet, indent, write_call, write_comment

OWN_STRATEGY = """\
class OwnDDPStrategy(DDPStrategy):
    # Fabric has no argument for this, and its model hides the DDP inside.
    def setup_module(self, module):
        ddp = super().setup_module(module)
{statements}
        return ddp"""
STEP = """\
fabric.clip_gradients(model, optimizer, max_norm=max_norm)  # unscales first
optimizer.step()
optimizer.zero_grad()"""
PLAIN_LOOP = f"""\
for inputs, targets in loader:  # every backward synchronises: no no_backward_sync, no division
    loss = loss_fn(model(inputs), targets)
    fabric.backward(loss)
{indent(STEP)}"""
LOOP = """\
accumulation_steps = {steps}
for micro_step, (inputs, targets) in enumerate(loader, start=1):
    is_last = micro_step % accumulation_steps == 0 or micro_step == len(loader)
{condition}
    # Forward decides whether backward synchronises, so this goes around both.
    with fabric.no_backward_sync(model, enabled=accumulates):
        loss = loss_fn(model(inputs), targets) / accumulation_steps  # Fabric does not divide
        fabric.backward(loss)
    if is_last:
{step}"""
ACCUMULATES = "    accumulates = not is_last"
FIRST_SYNCHRONISES = """\
    # torch fails if a static graph's first backward lies inside no_sync (pytorch#143580).
    accumulates = not is_last and micro_step > 1"""
SETUP = "model, optimizer = fabric.setup(model, optimizer)"


def write(change: Change) -> Snippet:
    """The strategy where wrapping changes, the loop where accumulation does."""
    imports: set[str] = set()
    blocks: list[str] = []
    if change.changes_wrapper or change.changes_hook:
        setup = set_up_hook(change, "ddp")
        imports = {
            "from lightning.fabric import Fabric",
            "from lightning.fabric.strategies import DDPStrategy",
            *setup.imports,
        }
        if setup.statements:
            own = OWN_STRATEGY.format(statements=indent("\n".join(setup.statements), 2))
            blocks = [*setup.definitions, own]
        strategy = list_arguments(change) + list_removals(change)
        call = write_call("OwnDDPStrategy" if setup.statements else "DDPStrategy", strategy)
        fabric = write_call("fabric = Fabric", [Argument("strategy", indent(call).lstrip())])
        blocks += [f"{fabric}\nfabric.launch()", setup.load, SETUP]
        if setup.has_checkpoint:
            blocks.append(f"# On every rank, beside each fabric.save():\n{SAVE}")
    if change.changes_accumulation:
        blocks.append(_write_loop(change))
    return Snippet(frozenset(imports), tuple(blocks))


def _write_loop(change: Change) -> str:
    comment = write_comment(say_accumulation(change))
    if change.target.accumulation_steps == 1:
        return f"{comment}\n{PLAIN_LOOP}"
    loop = LOOP.format(
        steps=change.target.accumulation_steps,
        condition=FIRST_SYNCHRONISES if change.synchronises_first else ACCUMULATES,
        step=indent(STEP, 2),
    )
    return f"{comment}\n{loop}".lstrip()
