"""Databases as a tool: `library.register(*database_query_tools(config))`."""

from ferrule_tools.database.query import database_query_tools
from ferrule_tools.database.session import DatabaseConfig, DatabaseQueryConfig

__all__ = ["DatabaseConfig", "DatabaseQueryConfig", "database_query_tools"]
