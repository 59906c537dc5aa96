"""What the step would take under other settings: one backward replayed with its buckets, and the step around it.

scenarios: the numbers, certain and drawn; buckets: what a setting makes of the gradients; backward: the replay itself;
gaps: settings that it cannot evaluate; prediction: the step around it; waterfall: where its time goes, term by term;
baseline: the check against measurement.

After the last gradient the step goes on when each bucket in turn has ended and been copied out, or, on a GPU, when the
host has launched what follows, whichever is later. The slowest rank decides when a gradient is ready.
"""

from advisor.replay.backward import Backward, Chains, Replayed, replay_backward
from advisor.replay.baseline import check_baseline, estimate_residual
from advisor.replay.buckets import (
    bucket_gradients,
    count_wire_bytes,
    plan_backward,
    rebuilds,
    sends_nothing,
)
from advisor.replay.gaps import find_gap, hides_gradients
from advisor.replay.prediction import blocking_ns, predict, predict_ceiling, replay_scenarios, step_ns
from advisor.replay.scenarios import NUM_DRAWS, Job, Scenario, draw_scenarios, free_communication
from advisor.replay.waterfall import explain_step, sum_copies_in

__all__ = [
    "NUM_DRAWS",
    "Backward",
    "Chains",
    "Job",
    "Replayed",
    "Scenario",
    "blocking_ns",
    "bucket_gradients",
    "check_baseline",
    "count_wire_bytes",
    "draw_scenarios",
    "estimate_residual",
    "explain_step",
    "find_gap",
    "free_communication",
    "hides_gradients",
    "plan_backward",
    "predict",
    "predict_ceiling",
    "rebuilds",
    "replay_backward",
    "replay_scenarios",
    "sends_nothing",
    "step_ns",
    "sum_copies_in",
]
