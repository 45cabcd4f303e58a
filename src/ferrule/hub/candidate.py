"""Which tools can do a job: all of one name, or all with one tag, whatever source they come from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ferrule.errors import ToolNotFound
from ferrule.names import did_you_mean
from ferrule.registry import RegistrySnapshot, action_of
from ferrule.spec import Effects, Tool, ToolCapability

CandidateKey: TypeAlias = tuple[str, str, str]

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[^\W\d_A-Za-z]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCandidate:
    """One action of one tool that can do the job."""

    name: str
    source: str
    tool: Tool
    priority: int
    """Of its source; the lowest goes first."""
    meta: dict[str, Any]
    """`capabilities`: the tool's tags."""
    capability: ToolCapability

    @classmethod
    def of(cls, tool: Tool, capability: ToolCapability) -> ToolCandidate:
        return cls(
            name=tool.id,
            source=tool.source,
            tool=tool,
            priority=tool.priority,
            meta={"capabilities": list(tool.spec.tags)},
            capability=capability,
        )

    @property
    def key(self) -> CandidateKey:
        """Stays the same when the tool is loaded again."""
        return self.source, self.name, self.capability.name

    @property
    def label(self) -> str:
        """For messages: `search (tools)`, `web.search (mcps)`."""
        action = "" if len(self.tool.spec.capabilities) == 1 else f".{self.capability.name}"
        return f"{self.name}{action} ({self.source})"

    @property
    def names(self) -> set[str]:
        """What the tool, or this action of it, is allowed by."""
        return {self.name, self.tool.spec.name, self.tool.spec.model_name(self.capability)}

    @property
    def effects(self) -> Effects:
        return self.tool.spec.effects_of(self.capability)

    @property
    def may_race(self) -> bool:
        """Whether it does no harm to call this one beside another."""
        return self.effects.repeatable and not self.effects.destructive


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A candidate that was not called to the end, and why."""

    label: str
    reason: str

    def to_dict(self) -> dict[str, str]:
        return {"candidate": self.label, "reason": self.reason}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search for candidates gave."""

    candidates: Sequence[ToolCandidate] = ()
    skipped: Sequence[Skipped] = ()


class CandidateIndex:
    """The tools of one snapshot that can be called, by every name and tag they can be asked for with."""

    def __init__(self, snapshot: RegistrySnapshot) -> None:
        self.snapshot = snapshot
        self._tools: dict[str, list[Tool]] = {}
        self._actions: dict[str, list[tuple[Tool, ToolCapability]]] = {}
        self._tagged: dict[str, list[Tool]] = {}
        self._found: dict[tuple[str, str | None], Found] = {}
        for tool in snapshot:
            if snapshot.is_callable(tool):
                self._add(tool)

    def named(self, name: str, action: str | None) -> Found:
        """Tools of this name, and without an action also actions of this name."""
        found = self._found.get((name, action))
        if found is None:
            found = self._find_named(name, action)
            if found.candidates:  # wrong names are not kept: there is no end of them
                self._found[name, action] = found
        return found

    def tagged(self, tag: str) -> Found:
        """Tools with this tag; of a tool with several actions, the one that speaks of the tag."""
        candidates, skipped = [], []
        for tool in self._tagged.get(tag.casefold(), ()):
            capability = tool.spec.capability() or _action_about(tool, tag)
            if capability is not None:
                candidates.append(ToolCandidate.of(tool, capability))
            else:
                reason = f"None of its actions is about {tag!r}. {tool.spec.describe_actions()}"
                skipped.append(Skipped(label=f"{tool.id} ({tool.source})", reason=reason))
        return Found(candidates=candidates, skipped=skipped)

    def near_tags(self, tag: str) -> str:
        return did_you_mean(tag, self._tagged)

    def _find_named(self, name: str, action: str | None) -> Found:
        candidates, skipped = [], []
        for tool in self._tools.get(name, ()):
            wanted = action or (name if tool.spec.capability() is None and tool.spec.capability(name) else None)
            try:
                candidates.append(ToolCandidate.of(tool, action_of(tool, wanted)))
            except ToolNotFound as error:
                skipped.append(Skipped(label=f"{tool.id} ({tool.source})", reason=str(error)))
        if action is None:
            there = {candidate.tool for candidate in candidates}
            candidates += [ToolCandidate.of(t, c) for t, c in self._actions.get(name, ()) if t not in there]
        return Found(candidates=candidates, skipped=skipped) if candidates or skipped else self._otherwise(name, action)

    def _otherwise(self, name: str, action: str | None) -> Found:
        """What the registry understands beyond exact names, such as `tool__action` in any script."""
        if not self.snapshot.knows(name):
            return Found()
        try:
            return Found(candidates=[ToolCandidate.of(*self.snapshot.find(name, action))])
        except ToolNotFound:
            return Found()

    def _add(self, tool: Tool) -> None:
        spec = tool.spec
        for name in {spec.tool_id, spec.name}:
            self._tools.setdefault(name, []).append(tool)
        for tag in {tag.casefold() for tag in spec.tags}:
            self._tagged.setdefault(tag, []).append(tool)
        for capability in spec.capabilities:
            for name in {capability.name, spec.model_name(capability)}:
                self._actions.setdefault(name, []).append((tool, capability))


def _action_about(tool: Tool, tag: str) -> ToolCapability | None:
    """The action called like the tag, else one of its category, else one with the tag as a word of its name."""
    wanted = tag.casefold()
    actions = tool.spec.capabilities
    for names in (
        [{c.name.casefold()} for c in actions],
        [{c.category.casefold()} for c in actions],
        [_words(c.name) for c in actions],
    ):
        for capability, said in zip(actions, names, strict=True):
            if wanted in said:
                return capability
    return None


def _words(name: str) -> set[str]:
    found: Iterable[str] = _WORD.findall(name)
    return {word.casefold() for word in found}
