"""Tool calls read from text, for models that write them instead of asking for them by their API."""

from ferrule.parsing.known import KnownTools
from ferrule.parsing.reading import Reading, parse_tool_calls, read_tool_calls
from ferrule.parsing.stream import ToolCallReader

__all__ = ["KnownTools", "Reading", "ToolCallReader", "parse_tool_calls", "read_tool_calls"]
