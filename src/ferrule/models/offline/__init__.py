"""A model that needs no key: deterministic, and it says what it cannot do."""

from ferrule.models.offline.model import OfflineModel

__all__ = ["OfflineModel"]
