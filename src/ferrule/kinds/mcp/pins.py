"""What the user has accepted of a server and its actions: trust on first use.

Everything that a server says of its actions, and its instructions, are pinned when it first lists them. A later listing
that differs is a change. Until the user accepts it (`ferrule mcp diff`, `accept`), models and clients get what was
accepted before, or nothing where that is not stored. An action that a known server adds is passed on, and calls of it
that a model chooses need approval until it is accepted. The pins of a server are the stream `mcp-pins:SERVER` of the
store, shared by all processes that use the store.
"""

from __future__ import annotations

import asyncio
import difflib
import json
import logging
import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from typing import Any, Final

from ferrule.core.aio import cancel_all
from ferrule.core.spec import Tool, ToolCapability
from ferrule.errors import StoreError
from ferrule.kinds.mcp.listing import (
    find_changed_parts,
    listed_instructions,
    pinned_parts,
    with_accepted_parts,
    with_instructions,
)
from ferrule.store import ToolKnowledgeStore

logger = logging.getLogger("ferrule.mcp")

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
    packed: str = ""
    """The parts of an action, in a form that redaction does not change: redaction would remove a parameter named
    `password`. Empty for instructions, and for parts that are too long."""

    @property
    def parts(self) -> dict[str, Any] | None:
        """Return the parts of an action, for models and clients; None where they are not stored."""
        try:
            return json.loads(zlib.decompress(bytes.fromhex(self.packed))) if self.packed else None
        except (ValueError, zlib.error):
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPins:
    """The pins of one server."""

    is_known: bool = False
    """The server has been pinned before."""
    actions: Mapping[str, PinnedText] = field(default_factory=dict)
    instructions: PinnedText | None = None
    problem: str = _NOT_READ_YET
    """Why the pins are unknown; empty when they are known."""


async def read_pins(store: ToolKnowledgeStore, server: str) -> ServerPins:
    """Read the pins of a server. A store that is broken or slow gives pins with a `problem`."""
    try:
        async with asyncio.timeout(READ_TIMEOUT):
            entries = await store.read_entries(STREAM_PREFIX + server)
    except TimeoutError:
        return ServerPins(problem=f"the store has not answered for {READ_TIMEOUT:g} s")
    except StoreError as error:
        return ServerPins(problem=f"the store cannot be read: {error}")
    texts = {
        key: PinnedText(digest=str(value.get("digest")), text=str(value.get("text")), packed=value.get("packed") or "")
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
    """Accept actions, and instructions if they are given. Return the pins with them.

    Many actions take long: call this in a thread.
    """
    stream = STREAM_PREFIX + server
    actions = dict(pins.actions)
    if not pins.is_known:
        store.write_entry(stream, _SERVER_KEY, {"known": True})
    for capability in capabilities:
        parts = pinned_parts(capability.listed or capability)
        packed = zlib.compress(json.dumps(parts).encode()).hex()
        pin = _make_pin(_format_parts(parts), packed if len(packed) <= MAX_TEXT_LENGTH else "")
        if actions.get(capability.name) != pin:
            store.write_entry(stream, _ACTION_KEY + capability.name, asdict(pin))
            actions[capability.name] = pin
    pinned_instructions = pins.instructions if instructions is None else _make_pin(instructions)
    if pinned_instructions is not None and pinned_instructions != pins.instructions:
        store.write_entry(stream, _INSTRUCTIONS_KEY, asdict(pinned_instructions))
    return ServerPins(is_known=True, actions=actions, instructions=pinned_instructions, problem="")


def find_changes(server: str, capability: ToolCapability, pins: ServerPins) -> str:
    """Return how an action differs from what the user accepted, as a diff, or an empty text."""
    if pins.problem:
        return _explain_unknown(server, f"the action {capability.name!r} has", pins.problem)
    if not pins.is_known:
        return ""
    parts, pin = pinned_parts(capability.listed or capability), pins.actions.get(capability.name)
    if pin is None:
        current = _cut_text(_format_parts(parts)).splitlines()
        return _cut_diff([f"new action {capability.name!r}", *(f"+{line}" for line in current)])
    before = pin.text if pin.parts is None else _format_parts(pin.parts)
    return _compare_texts(pin, before, _format_parts(parts))


def find_instructions_changes(server: str, instructions: str, pins: ServerPins) -> str:
    """Return how the instructions of a server differ from the accepted instructions, as a diff, or an empty text."""
    if pins.problem:
        return _explain_unknown(server, "the instructions have", pins.problem)
    return "" if pins.instructions is None else _compare_texts(pins.instructions, pins.instructions.text, instructions)


def choose_instructions(instructions: str, pins: ServerPins) -> str:
    """Return the instructions that the user accepted, now or earlier; no text while that is unknown."""
    if pins.problem:
        return ""
    pin = pins.instructions
    return instructions if pin is None or pin.digest == _digest_of(instructions) else pin.text


def _compare_texts(pin: PinnedText, before: str, text: str) -> str:
    """Return the difference unredacted: what looks like a secret may be what the server wants to hide."""
    if pin.digest == _digest_of(text):
        return ""
    lines = difflib.unified_diff(
        _cut_text(before).splitlines(), _cut_text(text).splitlines(), "accepted", "current", lineterm="", n=2
    )
    return _cut_diff(list(lines)) or "It has changed beyond the length shown."


def _explain_unknown(server: str, subject: str, problem: str) -> str:
    reason = f"what you accepted of the MCP server {server!r} cannot be compared, because {problem}"
    return f"Whether {subject} changed is unknown: {reason}."


def _serve_action(tool: Tool, action: ToolCapability, pins: ServerPins) -> ToolCapability:
    """Return an action of a server as the user accepted it, or as it is if it is new, or marked as withheld."""
    listed = action.listed or replace(action, changes="")
    changes = find_changes(tool.id, listed, pins)
    pin = pins.actions.get(action.name)
    parts = pin.parts if pin is not None else pinned_parts(listed)
    parts = parts if changes and not pins.problem else None
    served = replace(listed, changes=changes) if parts is None else with_accepted_parts(tool, listed, parts, changes)
    return action if served == action else served


def describe_changes(tool: Tool) -> dict[str, str]:
    """Say in a few words what has changed in a server since the user accepted it, by action; "" for instructions."""
    changes = {}
    for action in tool.spec.capabilities:
        if action.changes:
            parts = find_changed_parts(action)
            change = f"changed: {', '.join(parts)}" if parts else "new"
            changes[action.name] = "withheld" if action.is_withheld else change
    if listed_instructions(tool) != tool.spec.metadata.get("instructions", ""):
        changes[INSTRUCTIONS] = "changed"
    return changes


def _format_parts(parts: Mapping[str, Any]) -> str:
    lines = ["description:", *(f"  {line}" for line in parts["description"].splitlines())]
    for name, value in parts.items():
        if value and name != "description":
            text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)
            lines += f"{name}: {text}".splitlines()
    return "\n".join(lines)


def _make_pin(text: str, packed: str = "") -> PinnedText:
    return PinnedText(digest=_digest_of(text), text=_cut_text(text), packed=packed)


def _digest_of(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _cut_text(text: str) -> str:
    return "\n".join(text[:MAX_TEXT_LENGTH].splitlines()[:MAX_TEXT_LINES])


def _cut_diff(lines: list[str]) -> str:
    text = "\n".join(lines)
    if len(text) <= MAX_DIFF_LENGTH:
        return text
    # With the digest: a person who accepts what was shown does not accept another end.
    return f"{text[:MAX_DIFF_LENGTH]}\n… ({len(text) - MAX_DIFF_LENGTH:,} more characters, {_digest_of(text)[:16]})"


# The pins of an engine's servers

POLL_INTERVAL: Final = 2.0
"""Seconds between two looks into the store while something is not accepted: another process may accept it."""


class PinTracker:
    """Compares the servers of an engine with what the user has accepted.

    The pins of a server are read when its actions are first known, and again while it has changes. The store has
    `READ_TIMEOUT` for it; until the pins are known, and when they cannot be read, every action is withheld.
    """

    def __init__(self, store: ToolKnowledgeStore, update: Callable[[str], Awaitable[bool]]) -> None:
        """`update` compares a server again when its pins have changed, and returns whether it has changes."""
        self._store, self._update = store, update
        self._pins: dict[str, ServerPins] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._to_repeat: set[str] = set()
        """Servers that were listed while their pins were being read: what was found may be about the listing before."""
        self._unapplied: set[str] = set()
        """Servers whose actions and instructions are withheld, because their pins are being read for the first time."""
        self._reported: dict[str, dict[str, str]] = {}
        """The changes that were logged, by server and action."""

    def is_read(self, server: str) -> bool:
        return server in self._pins

    @property
    def unapplied_servers(self) -> frozenset[str]:
        """Return the servers of which nothing is passed on until their pins have been read."""
        return frozenset(self._unapplied)

    def apply_pins(self, tool: Tool) -> Tool:
        """Return the tool of a server with its actions and instructions as the user accepted them.

        A server that is new to the user is pinned. Many actions take long: call this in a thread.
        """
        pins, instructions = self._pins.get(tool.id, ServerPins()), listed_instructions(tool)
        if not pins.problem and not pins.is_known:
            pins = write_pins(self._store, tool.id, tool.spec.capabilities, pins, instructions=instructions)
            self._pins[tool.id] = pins
        tool = with_instructions(tool, choose_instructions(instructions, pins))
        capabilities = [_serve_action(tool, action, pins) for action in tool.spec.capabilities]
        if any(new is not old for new, old in zip(capabilities, tool.spec.capabilities, strict=True)):
            tool = replace(tool, spec=replace(tool.spec, capabilities=capabilities))
        if pins.problem:
            return tool
        changes, reported = describe_changes(tool), self._reported.get(tool.id, {})
        self._reported[tool.id] = changes
        for name, change in changes.items():
            if reported.get(name) != change:
                effect = "Agents ask before they call it" if change == "new" else "Models and clients do not get it"
                advice = f"{effect} until you accept it: ferrule mcp diff {tool.id}"
                subject = f"tool=<{tool.id}>, action=<{name or '(instructions)'}>"
                logger.warning("%s | not as you accepted it (%s). %s", subject, change, advice)
        return tool

    def start_reading(self, server: str) -> None:
        """Read the pins of a server, and again until it has no changes."""
        if not self.is_read(server):
            self._unapplied.add(server)
        current = self._tasks.get(server)
        if current is not None and not current.done():
            self._to_repeat.add(server)
            return
        name = f"ferrule-mcp-pins-{server}"
        task = self._tasks[server] = asyncio.create_task(self._read_until_unchanged(server), name=name)
        task.add_done_callback(lambda done: self._tasks.pop(server) if self._tasks.get(server) is done else None)

    async def wait_until_applied(self, server: str) -> None:
        if not self.is_read(server):
            self.start_reading(server)
        while server in self._unapplied and (task := self._tasks.get(server)) is not None:
            await asyncio.wait({task}, timeout=0.01)

    async def aclose(self) -> None:
        loop = asyncio.get_running_loop()
        await cancel_all([task for task in self._tasks.values() if task.get_loop() is loop])
        self._tasks.clear()
        self._unapplied.clear()

    async def _read_until_unchanged(self, server: str) -> None:
        has_changes = True
        while has_changes or server in self._to_repeat:
            self._to_repeat.discard(server)
            pins = await read_pins(self._store, server)
            earlier = self._pins.get(server)
            if earlier is None or (pins != earlier and not pins.problem):
                self._pins[server] = pins
            has_changes = await self._update(server)
            self._unapplied.discard(server)
            if has_changes:
                await asyncio.sleep(POLL_INTERVAL)
