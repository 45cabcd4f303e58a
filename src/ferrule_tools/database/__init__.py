"""Databases as a tool: `library.register(*database_query_tools(config))`."""

from ferrule_tools.database.config import DatabaseConfig, DatabaseQueryConfig
from ferrule_tools.database.query import database_query_tools

__all__ = ["DatabaseConfig", "DatabaseQueryConfig", "database_query_tools"]
