"""The time anywhere, and calculations with dates."""

from ferrule_tools.time.get_time import get_time

__all__ = ["get_time"]
