"""Finding tools by what they say about themselves."""

from ferrule.search.index import Hit, SearchIndex
from ferrule.search.registry_index import RegistryIndex

__all__ = ["Hit", "RegistryIndex", "SearchIndex"]
