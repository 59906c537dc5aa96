"""A comm hook that sends float32 gradients in 16 bits: half of the bytes, for two casts and some digits."""

from __future__ import annotations

from msgspec.structs import replace

from advisor.rules.bench import measure_saving, open_bench, show_steps
from advisor.rules.words import find_rows, say_ms
from advisor.schema import Backend, Recommendation
from advisor.verdict import Analysis

RULE = "sixteen_bit_hook"
HOOKS: dict[Backend, str] = {"nccl": "bf16", "gloo": "fp16"}
"""bf16 has float32's range and is preferred; gloo cannot reduce it."""
NUMERICS = {
    "bf16": "Gradients keep 8 bits of precision on the way: compare the loss curves before you keep it.",
    "fp16": "fp16 turns gradients above 65504 into inf and very small ones into 0: compare the loss curves.",
}
UNPROVEN = "In over 200 measured set-ups of one study compression won in 6: keep it only if a measurement confirms it."
UNTIMED = "That 16-bit numbers travel and add up as fast a byte as 32-bit ones was not measured on this machine."
SOURCES = (
    "torch/distributed/algorithms/ddp_comm_hooks/default_hooks.py: bf16_compress_hook, fp16_compress_hook",
    "Agarwal et al., On the Utility of Gradient Compression in Distributed Training Systems (MLSys 2022)",
)


def propose(analysis: Analysis) -> Recommendation | None:
    """Proposes the backend's 16-bit hook where gradients are float32 and halving their bytes saves time."""
    bench = open_bench(analysis)
    if bench is None or bench.config.comm_hook not in ("none", "allreduce"):
        return None
    hook = HOOKS.get(bench.config.backend)
    if hook is None or {gradient.dtype for gradient in bench.job.profile.slowest.gradients} != {"float32"}:
        return None
    today, hooked = bench.today, bench.try_change({"comm_hook": hook})
    saving = replace(measure_saving(today, hooked), basis="extrapolated")
    if not bench.matters(saving):
        return None
    return Recommendation(
        rule=RULE,
        title=f"Try the {hook} comm hook",
        message=(
            f"Communication costs {say_ms(bench.communication_ns)} a step, and {hook} halves its bytes: replay "
            f"predicts {say_ms(saving.value)} less. Measure the step and compare the loss before you keep it."
        ),
        change={"comm_hook": hook},
        saving_ns=saving,
        status="predicted",
        evidence=show_steps(today, hooked, find_rows(analysis.steps)),
        caveats=(NUMERICS[hook], UNPROVEN, UNTIMED),
        sources=SOURCES,
        prediction=bench.predict(hooked.config),
        acts_on_ns=bench.communication_ns,
    )
