"""What the user has accepted of a server and its actions: trust on first use, stored by digest and text.

The description, the schemas and the annotations of each action are pinned when the server first lists it. A later
listing that differs, or a new action of a known server, is a change: calls of it ask until the user accepts it
(`ferrule mcp diff`, `accept`). The server's own instructions are pinned too, and what models and clients get is the
accepted text. The pins of a server are the stream `mcp-pins:SERVER` of the store, shared by all processes that use the
store.
"""

from __future__ import annotations

import asyncio
import difflib
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from typing import Any, Final

from ferrule.core.aio import cancel_all
from ferrule.core.spec import Tool, ToolCapability
from ferrule.errors import StoreError
from ferrule.kinds.mcp.listing import listed_instructions, with_instructions
from ferrule.store import ToolKnowledgeStore

STREAM_PREFIX: Final = "mcp-pins:"
READ_TIMEOUT: Final = 10.0
"""Seconds the store has to return the pins of a server."""
MAX_TEXT_LENGTH: Final = 50_000
MAX_TEXT_LINES: Final = 2_000
MAX_DIFF_LENGTH: Final = 8_000
INSTRUCTIONS: Final = ""
"""The name of a server's instructions among the names of its actions, none of which is empty."""
_ACTION_KEY: Final = "action:"
_INSTRUCTIONS_KEY: Final = "instructions"
_SERVER_KEY: Final = "server"
"""Its presence says that the server is known, even if it listed no actions."""
_NOT_READ_YET: Final = "they have not been read yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedText:
    """An action as text, or the instructions of a server."""

    digest: str
    text: str
    """Without secrets, and cut if it is long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPins:
    """The pins of one server."""

    is_known: bool = False
    """The server has been pinned before."""
    actions: Mapping[str, PinnedText] = field(default_factory=dict)
    instructions: PinnedText | None = None
    """None: not pinned yet, by a version of Ferrule that pinned actions only."""
    problem: str = _NOT_READ_YET
    """Why the pins are unknown; empty when they are known."""


async def read_pins(store: ToolKnowledgeStore, server: str) -> ServerPins:
    """The pins of a server; a store that is broken or slow gives pins with a `problem`."""
    try:
        async with asyncio.timeout(READ_TIMEOUT):
            entries = await store.read_entries(STREAM_PREFIX + server)
    except TimeoutError:
        return ServerPins(problem=f"the store has not answered for {READ_TIMEOUT:g} s")
    except StoreError as error:
        return ServerPins(problem=f"the store cannot be read: {error}")
    texts = {
        key: PinnedText(digest=str(value.get("digest")), text=str(value.get("text")))
        for key, value in entries.items()
        if isinstance(value, dict)
    }
    return ServerPins(
        is_known=bool(entries),
        actions={key.removeprefix(_ACTION_KEY): pin for key, pin in texts.items() if key.startswith(_ACTION_KEY)},
        instructions=texts.get(_INSTRUCTIONS_KEY),
        problem="",
    )


def write_pins(
    store: ToolKnowledgeStore,
    server: str,
    capabilities: Iterable[ToolCapability],
    pins: ServerPins,
    *,
    instructions: str | None = None,
) -> ServerPins:
    """Accept actions, and instructions if they are given, as they are; returns the pins with them.

    Many actions take long: call it in a thread.
    """
    stream = STREAM_PREFIX + server
    actions = dict(pins.actions)
    if not pins.is_known:
        store.write_entry(stream, _SERVER_KEY, {"known": True})
    for capability in capabilities:
        pin = _make_pin(format_pinned_text(capability))
        if pins.is_known and (old := actions.get(capability.name)) is not None and old.digest == pin.digest:
            continue
        store.write_entry(stream, _ACTION_KEY + capability.name, asdict(pin))
        actions[capability.name] = pin
    pinned_instructions = pins.instructions if instructions is None else _make_pin(instructions)
    if pinned_instructions is not None and pinned_instructions != pins.instructions:
        store.write_entry(stream, _INSTRUCTIONS_KEY, asdict(pinned_instructions))
    return ServerPins(is_known=True, actions=actions, instructions=pinned_instructions, problem="")


def find_changes(store: ToolKnowledgeStore, server: str, capability: ToolCapability, pins: ServerPins) -> str:
    """How an action differs from what the user accepted, as a diff; empty where it does not."""
    if pins.problem:
        return _explain_unknown(server, f"the action {capability.name!r} has", pins.problem)
    if not pins.is_known:
        return ""
    text = format_pinned_text(capability)
    pin = pins.actions.get(capability.name)
    if pin is None:
        current = store.redaction.redact_text(_cut_text(text)).splitlines()
        return _cut_diff([f"new action {capability.name!r}", *(f"+{line}" for line in current)])
    return _compare_texts(store, pin, text)


def find_instructions_changes(store: ToolKnowledgeStore, server: str, instructions: str, pins: ServerPins) -> str:
    """How the instructions of a server differ from those that the user accepted, as a diff; empty if they do not."""
    if pins.problem:
        return _explain_unknown(server, "the instructions have", pins.problem)
    return "" if pins.instructions is None else _compare_texts(store, pins.instructions, instructions)


def choose_instructions(instructions: str, pins: ServerPins) -> str:
    """The instructions that the user accepted: those of the server now, earlier ones, or none while that is unknown."""
    if pins.problem:
        return ""
    pin = pins.instructions
    return instructions if pin is None or pin.digest == _digest_of(instructions) else pin.text


def _compare_texts(store: ToolKnowledgeStore, pin: PinnedText, text: str) -> str:
    if pin.digest == _digest_of(text):
        return ""
    clean = store.redaction.redact_text
    before, current = clean(pin.text).splitlines(), clean(_cut_text(text)).splitlines()
    lines = list(difflib.unified_diff(before, current, "accepted", "current", lineterm="", n=2))
    return _cut_diff(lines) or "It has changed in a part that is not shown: a secret, or beyond the length shown."


def _explain_unknown(server: str, subject: str, problem: str) -> str:
    return (
        f"Whether {subject} changed is unknown: what you accepted of the MCP server {server!r} cannot be compared, "
        f"because {problem}."
    )


def mark_changed_actions(
    store: ToolKnowledgeStore, server: str, capabilities: Iterable[ToolCapability], pins: ServerPins
) -> list[ToolCapability]:
    """The actions, each with how it differs from what the user accepted."""
    return [
        capability if capability.changes == changes else replace(capability, changes=changes)
        for capability in capabilities
        for changes in [find_changes(store, server, capability, pins)]
    ]


def format_pinned_text(capability: ToolCapability) -> str:
    """What is pinned of an action, as text."""
    parts: dict[str, Any] = {
        "parameters": capability.parameters,
        "output": capability.output,
        "annotations": capability.annotations,
    }
    lines = ["description:", *(f"  {line}" for line in capability.description.splitlines())]
    for name, value in parts.items():
        if value:
            text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)
            lines += f"{name}: {text}".splitlines()
    return "\n".join(lines)


def _make_pin(text: str) -> PinnedText:
    return PinnedText(digest=_digest_of(text), text=_cut_text(text))


def _digest_of(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _cut_text(text: str) -> str:
    return "\n".join(text[:MAX_TEXT_LENGTH].splitlines()[:MAX_TEXT_LINES])


def _cut_diff(lines: list[str]) -> str:
    text = "\n".join(lines)
    if len(text) <= MAX_DIFF_LENGTH:
        return text
    return f"{text[:MAX_DIFF_LENGTH]}\n… ({len(text) - MAX_DIFF_LENGTH:,} more characters)"


# The pins of an engine's servers

POLL_INTERVAL: Final = 2.0
"""Seconds between two looks into the store while something is not accepted: another process may accept it."""


class PinTracker:
    """Compares the servers of an engine with what the user has accepted.

    The pins of a server are read when it is first listed or called, and again while it has changes. Nothing waits for
    the store but calls of the server, and those not longer than `READ_TIMEOUT`; until the pins are known, and when they
    cannot be read, every action counts as changed.
    """

    def __init__(self, store: ToolKnowledgeStore, update: Callable[[str], Awaitable[bool]]) -> None:
        """`update` compares a server again when its pins have changed, and returns whether it has changes."""
        self._store, self._update = store, update
        self._pins: dict[str, ServerPins] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._to_repeat: set[str] = set()
        """Servers that were listed while their pins were being read: what was found may be about the listing before."""

    def is_read(self, server: str) -> bool:
        return server in self._pins

    def is_checked_against_pins(self, server: str, capability: ToolCapability) -> bool:
        """Whether the changes of an action were found after its pins were read.

        For a moment they were not, although the pins are read: then a thread is comparing them.
        """
        return capability.changes != _explain_unknown(server, f"the action {capability.name!r} has", _NOT_READ_YET)

    def mark_changes(self, tool: Tool) -> Tool:
        """The tool of a server with the changes of its actions, and with the instructions that the user accepted.

        A server that is new to the user is pinned. With many actions it takes long: call it in a thread.
        """
        pins, instructions = self._pins.get(tool.id, ServerPins()), listed_instructions(tool)
        if not pins.problem and (not pins.is_known or pins.instructions is None):
            unknown = () if pins.is_known else tool.spec.capabilities
            pins = write_pins(self._store, tool.id, unknown, pins, instructions=instructions)
            self._pins[tool.id] = pins
        tool = with_instructions(tool, choose_instructions(instructions, pins))
        capabilities = mark_changed_actions(self._store, tool.id, tool.spec.capabilities, pins)
        if all(new is old for new, old in zip(capabilities, tool.spec.capabilities, strict=True)):
            return tool
        return replace(tool, spec=replace(tool.spec, capabilities=capabilities))

    def start_reading(self, server: str) -> None:
        """Read the pins of a server, and again until it has no changes."""
        current = self._tasks.get(server)
        if current is not None and not current.done():
            self._to_repeat.add(server)
            return
        task = self._tasks[server] = asyncio.create_task(
            self._read_until_unchanged(server), name=f"ferrule-mcp-pins-{server}"
        )
        task.add_done_callback(lambda done: self._tasks.pop(server) if self._tasks.get(server) is done else None)

    async def wait_until_read(self, server: str) -> None:
        if not self.is_read(server):
            self.start_reading(server)
        while not self.is_read(server) and (task := self._tasks.get(server)) is not None:
            await asyncio.wait({task}, timeout=0.01)

    async def aclose(self) -> None:
        loop = asyncio.get_running_loop()
        await cancel_all([task for task in self._tasks.values() if task.get_loop() is loop])
        self._tasks.clear()

    async def _read_until_unchanged(self, server: str) -> None:
        has_changes = True
        while has_changes or server in self._to_repeat:
            self._to_repeat.discard(server)
            pins = await read_pins(self._store, server)
            earlier = self._pins.get(server)
            if earlier is None or (pins != earlier and not pins.problem):
                self._pins[server] = pins
            has_changes = await self._update(server)
            if has_changes:
                await asyncio.sleep(POLL_INTERVAL)
