"""Marking parameters whose values must never be recorded or shown."""

from __future__ import annotations

from typing import Any


class Secret:
    """Marks a parameter as secret: `token: Annotated[str, Secret]`."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: Any) -> Any:
        # Read by pydantic where the marker stands inside a model or a dataclass.
        schema = handler(core_schema)
        schema["writeOnly"] = True
        return schema


def is_secret(mark: object) -> bool:
    return mark is Secret or isinstance(mark, Secret)
