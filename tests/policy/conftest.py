"""The stores of the tests of the store."""

from tests.store.conftest import postgres_cluster, postgres_url, store_url

__all__ = ["postgres_cluster", "postgres_url", "store_url"]
