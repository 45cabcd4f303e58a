"""The model without a key: deterministic, and honest about it."""

from ferrule.models.offline.model import OfflineModel

__all__ = ["OfflineModel"]
