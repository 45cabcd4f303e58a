"""The time anywhere, and reckoning with dates: what runs `get_time.yaml`."""

from ferrule.tools.time.tell import get_time

__all__ = ["get_time"]
