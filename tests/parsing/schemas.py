"""The tools that the texts of these tests may call."""

from typing import Any


def schema(name: str, *required: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "description": "A tool.", "parameters": parameters}}


TEXT, WHOLE, FLAG, LIST, OBJECT = ({"type": kind} for kind in ("string", "integer", "boolean", "array", "object"))
WEATHER = schema("get_weather", "city", city=TEXT, unit=TEXT)
SEARCH = schema("search_web", "query", query=TEXT, limit=WHOLE)
TIME = schema("get_time")
WRITE = schema(
    "write_file", "path", "content", path=TEXT, content=TEXT, mode=WHOLE, backup=FLAG, tags=LIST, meta=OBJECT
)
TOOLS = [WEATHER, SEARCH, TIME, WRITE]
