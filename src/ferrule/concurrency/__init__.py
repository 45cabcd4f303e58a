"""How many calls may run concurrently, which ones wait, and which one starts next."""

from ferrule.concurrency.config import ConcurrencyConfig, ConcurrencyMetrics
from ferrule.concurrency.controller import ToolConcurrencyController, suspend_slots
from ferrule.concurrency.scheduler import Slot

__all__ = ["ConcurrencyConfig", "ConcurrencyMetrics", "Slot", "ToolConcurrencyController", "suspend_slots"]
