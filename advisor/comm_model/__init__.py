"""How long a collective of n bytes takes: a latency, then a slope for each range of sizes, with joint intervals.

transfers -> samples; lines: the robust fit of one broken line; kinks: where it breaks; draws: what stays uncertain;
fit: all of that to the models of a trace; ladders: what a probe or nccl-tests adds; sources: both together.
"""

from advisor.comm_model.fit import CommFit, fit_comm_model, fit_comm_models
from advisor.comm_model.ladders import Overlap, estimate_compute_slowdown, fit_ladder, measure_overlap
from advisor.comm_model.sources import fit_sources
from advisor.comm_model.transfers import Transfer, collect_transfers

__all__ = [
    "CommFit",
    "Overlap",
    "Transfer",
    "collect_transfers",
    "estimate_compute_slowdown",
    "fit_comm_model",
    "fit_comm_models",
    "fit_ladder",
    "fit_sources",
    "measure_overlap",
]
