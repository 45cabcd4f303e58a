"""Parses tool calls from text, for models that write them instead of using their API's tool calls."""

from ferrule.parsing.known_tools import KnownTools
from ferrule.parsing.reader import ParsedText, ToolCallReader, parse_model_text, parse_tool_calls, remove_empty_markup

__all__ = ["KnownTools", "ParsedText", "ToolCallReader", "parse_model_text", "parse_tool_calls", "remove_empty_markup"]
