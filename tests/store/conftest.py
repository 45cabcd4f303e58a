"""Names that other packages import; `tests.support.postgres` has them."""

from tests.support.postgres import postgres_cluster, postgres_url, run_postgres, store_url

__all__ = ["postgres_cluster", "postgres_url", "run_postgres", "store_url"]
