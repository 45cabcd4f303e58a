"""Databases as a tool: `library.register(*database_query_tools(config))`."""

from ferrule.tools.database_query.box import database_query_tools
from ferrule.tools.database_query.config import DatabaseConfig, DatabaseQueryConfig

__all__ = ["DatabaseConfig", "DatabaseQueryConfig", "database_query_tools"]
