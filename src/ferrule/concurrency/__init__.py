"""How many calls may run at once, who waits, and who goes next."""

from ferrule.concurrency.config import ConcurrencyConfig, ConcurrencyMetrics
from ferrule.concurrency.controller import ToolConcurrencyController
from ferrule.concurrency.floor import Place

__all__ = ["ConcurrencyConfig", "ConcurrencyMetrics", "Place", "ToolConcurrencyController"]
