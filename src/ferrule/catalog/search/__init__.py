"""Finding tools by what they say about themselves."""

from ferrule.catalog.search.index import ActionHit, RegistryIndex, SearchHit, SearchIndex

__all__ = ["ActionHit", "RegistryIndex", "SearchHit", "SearchIndex"]
