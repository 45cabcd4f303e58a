"""Other parameters for a call that failed, with reasons."""

from ferrule.memory.adjustments.call import Adjustment
from ferrule.memory.adjustments.suggesting import suggest_adjustments

__all__ = ["Adjustment", "suggest_adjustments"]
