"""Calling APIs by name: `library.register(*api_tools(ApiCallerConfig(apis={"github": ApiConfig(…)})))`."""

from ferrule.tools.api_caller.box import api_tools
from ferrule.tools.api_caller.config import ApiCallerConfig, ApiConfig

__all__ = ["ApiCallerConfig", "ApiConfig", "api_tools"]
