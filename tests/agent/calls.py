"""Calls as a scripted model makes them."""

from typing import Any


def call(name: str, /, **arguments: object) -> Any:
    return {"name": name, "arguments": arguments}
