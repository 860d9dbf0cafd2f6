"""The learner: pure mathematics from counted evidence to a policy. No I/O, no clocks, no globals.

`Learner` takes `Delta`s (what engines counted) and gives `Decision`s. Inside: `acceptance` and `steps` hold evidence,
`curves` and `cost` (solved by `chain`) the posteriors, `prices`, `goodput` and `outlook` what an arm is worth, `gate`
and `policy` what is played, `standing` which loads need no new decision.
"""

from controller.learner.config import LearnerConfig, PoolSpec
from controller.learner.decision import Arm, Decision
from controller.learner.estimates import Achieved, CostRow, CurvePoint, Estimates
from controller.learner.evidence import Delta
from controller.learner.learner import Learner

__all__ = [
    "Achieved", "Arm", "CostRow", "CurvePoint", "Decision", "Delta", "Estimates", "Learner", "LearnerConfig",
    "PoolSpec",
]  # fmt: skip
