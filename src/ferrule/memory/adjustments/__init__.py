"""Other parameters for a call that failed, with reasons."""

from ferrule.memory.adjustments.failed_call import Adjustment
from ferrule.memory.adjustments.suggest import suggest_adjustments

__all__ = ["Adjustment", "suggest_adjustments"]
