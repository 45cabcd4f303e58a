"""Finding tools by what they say about themselves."""

from ferrule.catalog.search.index import ActionHit, SearchHit, SearchIndex
from ferrule.catalog.search.registry_index import RegistryIndex

__all__ = ["ActionHit", "RegistryIndex", "SearchHit", "SearchIndex"]
