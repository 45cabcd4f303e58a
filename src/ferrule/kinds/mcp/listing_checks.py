"""What a server lists, before the SDK reads it.

The SDK rejects a whole page when one entry is malformed, and checks results against the server's schemas with code that
a hostile schema can occupy for ever. So each entry is reduced here to what is used, its schemas are checked, and an
entry that cannot be used gets the reason: it hides that action only. The SDK checks no results; `OutputChecks` does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ferrule.core.json_schema import JsonSchema
from ferrule.core.schema_limits import BoundedValidator
from ferrule.core.spec import ToolCapability
from ferrule.errors import ExecutionFailed, SpecError
from ferrule.process.checks import is_valid_value

if TYPE_CHECKING:
    from mcp.shared.message import SessionMessage
    from mcp.types import CallToolResult

T = TypeVar("T")
R = TypeVar("R")

logger = logging.getLogger("ferrule.mcp")

ENTRIES_KEY: Final = "ferrule.entries"
"""Under this key of the `_meta` of a page is what was read from its entries; a server's own value is replaced."""
MAX_ENTRIES_ON_LOOP: Final = 20
"""A longer listing is checked in a thread."""
_TEXTS: Final = ("title", "description")
_HEADER_KEY: Final = "x-mcp-header"
"""In a schema: the argument is also sent as an HTTP header, by the SDK."""
_PASSED_ON: Final[dict[str, type]] = {"icons": list, "_meta": dict, "execution": dict}
"""Not used here, but shown to the clients of a server that offers the action again."""


async def extract_entries(message: SessionMessage, max_actions: int) -> None:
    """Take the entries out of a listing, except those that the SDK needs: it checks them one by one on the event loop.

    Other messages are not changed.
    """
    result = getattr(message.message, "result", None)
    tools = result.get("tools") if isinstance(result, dict) else None
    if not isinstance(result, dict) or not isinstance(tools, list):
        return
    entries = await run_in_thread_if_many(len(tools), _reduce_entries, tools[:max_actions])
    result["tools"] = [
        {"name": each["name"], "inputSchema": each["inputSchema"]} for each in entries if each["headers"]
    ]
    meta = result.get("_meta")
    result["_meta"] = {**(meta if isinstance(meta, dict) else {}), ENTRIES_KEY: PageEntries.of(entries)}


class PageEntries(str):
    """What was read from the entries of a page. A kind of text, because the SDK copies all other values."""

    entries: Sequence[Mapping[str, Any]]

    @classmethod
    def of(cls, entries: Sequence[Mapping[str, Any]]) -> PageEntries:
        page = cls(f"{len(entries)} entries")
        page.entries = entries
        return page


async def run_in_thread_if_many(count: int, work: Callable[[T], R], values: T) -> R:
    """Do something with so many entries: in a thread, if there are many."""
    return work(values) if count <= MAX_ENTRIES_ON_LOOP else await asyncio.to_thread(work, values)


def _reduce_entries(tools: list[Any]) -> list[dict[str, Any]]:
    return [_reduce_entry(entry, number) for number, entry in enumerate(tools, 1)]


def _reduce_entry(entry: Any, number: int) -> dict[str, Any]:
    entry = entry if isinstance(entry, dict) else {}
    name, schema = entry.get("name"), entry.get("inputSchema")
    fields: dict[str, Any] = {key: entry[key] for key in _TEXTS if isinstance(entry.get(key), str)}
    if isinstance(entry.get("annotations"), dict):
        fields["annotations"] = entry["annotations"]
    for key, kind in _PASSED_ON.items():
        if isinstance(entry.get(key), kind):
            fields[key] = entry[key]
    if isinstance(name, str) and name:
        problem = _find_problem_of_parameters(schema)
    else:
        name, problem = f"number {number}", "it has no name"
    if problem:
        fields["unavailable"] = problem
        schema = {"type": "object"}
    output = entry.get("outputSchema")
    if output is not None and (output_problem := _find_problem(output, "outputSchema")):
        logger.warning("action=<%s> | its results are not checked: %s", name, output_problem)
    elif output is not None:
        fields["outputSchema"] = output
    schema = {"type": "object", **schema}
    return {"name": name, "inputSchema": schema, "headers": _HEADER_KEY in str(schema), **fields}


def _find_problem_of_parameters(schema: Any) -> str:
    """Why the schema of arguments cannot be used; empty when it can."""
    if isinstance(schema, dict) and schema.get("type", "object") != "object":
        return f'its inputSchema has the type {str(schema["type"])[:50]!r} instead of "object"'
    return _find_problem(schema, "inputSchema")


def _find_problem(schema: Any, key: str) -> str:
    """Why a schema cannot be used; empty when it can."""
    if not isinstance(schema, dict):
        return f"its {key} is not an object"
    try:
        BoundedValidator(schema)
    except SpecError as error:
        return f"its {key} cannot be used: {error}"
    except ValueError as error:
        return f"its {key} is not a valid JSON Schema: {str(error).partition(chr(10))[0][:200]}"
    return ""


class OutputChecks:
    """Checks the structured content of results against what the actions declare."""

    def __init__(self) -> None:
        self._validators: dict[str, tuple[JsonSchema, BoundedValidator]] = {}

    async def check(self, capability: ToolCapability, result: CallToolResult) -> None:
        """ExecutionFailed for a result that is not what the action declares."""
        schema, content = capability.output, result.structured_content
        if schema is None or result.is_error:
            return
        if content is None:
            raise ExecutionFailed("it declares an output schema but returned no structured content")
        entry = self._validators.get(capability.name)
        if entry is None or entry[0] is not schema:
            try:
                entry = schema, BoundedValidator(schema)
            except (SpecError, ValueError):  # declared in a program, or stored by an earlier version
                return
            self._validators[capability.name] = entry
        checks = entry[1]
        is_short = checks.permits(content)
        if checks.is_valid(content) if is_short else await is_valid_value(schema, content):
            return
        can_explain = is_short and checks.cost.permits_explanation(content)
        reason = next(checks.validator.iter_errors(content)).message[:300] if can_explain else ""
        raise ExecutionFailed(f"its structured content does not match its output schema: {reason}".rstrip(": "))
