"""The tuner: the best split of a budget for each join, the skew of a stream, the size of a cluster.

======================  ====================================================================================
`tune`                  every algorithm at its best, the fastest first
`best_split`            one algorithm at its best
`skew_of`               the Zipf exponent of a sample, and how well it fits
`plan`                  shards and memory for a rate
`packing_gain`          bytes and rate of a packed relation, compared with the same rows unpacked
`try_best`              the best joins, run on a sample for one second each
`calibrate`             measures the cost of operations and reads on this machine
`create`                a join by its id, or the recommended one
======================  ====================================================================================
"""

from semistream.tuner.auto import create
from semistream.tuner.calibration import calibrate
from semistream.tuner.packing_gain import PackingGain, packing_gain
from semistream.tuner.planner import Plan, PlanError, plan
from semistream.tuner.search import best_of_grid, best_split
from semistream.tuner.skew import Skew, SkewError, estimate_skew
from semistream.tuner.trial import sample_rows, try_best
from semistream.tuner.tuning import Tuning, choose, describe, skew_of, tune

__all__ = [
    "PackingGain",
    "Plan",
    "PlanError",
    "Skew",
    "SkewError",
    "Tuning",
    "best_of_grid",
    "best_split",
    "calibrate",
    "choose",
    "create",
    "describe",
    "estimate_skew",
    "packing_gain",
    "plan",
    "sample_rows",
    "skew_of",
    "try_best",
    "tune",
]
