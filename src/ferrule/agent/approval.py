"""Which calls need a person's word."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal, Protocol, TypeAlias

from ferrule.agent.answer import Approval, ApprovalRequest, Question
from ferrule.errors import SetupError
from ferrule.spec import Tool, ToolCapability

Verdict: TypeAlias = Literal["allow", "ask", "deny"]
_VERDICTS = ("allow", "ask", "deny")
_EFFECTS = ("destructive", "read_only", "idempotent", "changing")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalPolicy:
    """Says of each call: allow, ask or deny. The most particular word counts: tool, then tag, then effect."""

    tools: Mapping[str, Verdict] = field(default_factory=dict)
    """By the name models know (`files__delete`), the tool's id, or a pattern (`files*`); the longest of them counts."""
    tags: Mapping[str, Verdict] = field(default_factory=dict)
    effects: Mapping[str, Verdict] = field(default_factory=lambda: {"destructive": "ask"})
    """By `destructive`, `read_only`, `idempotent`, or `changing`: everything that is not read-only."""
    default: Verdict = "allow"

    def __post_init__(self) -> None:
        said = {**self.tools, **self.tags, **self.effects, "default": self.default}
        for name, verdict in said.items():
            if verdict not in _VERDICTS:
                raise SetupError(f"the policy for {name!r} must be allow, ask or deny, not {verdict!r}")
        for effect in self.effects:
            if effect not in _EFFECTS:
                raise SetupError(f"there is no effect {effect!r}; write one of: {', '.join(_EFFECTS)}")

    def verdict(self, tool: Tool, capability: ToolCapability) -> Verdict:
        return self.particular(tool, capability) or self._by_effect(tool, capability)

    def particular(self, tool: Tool, capability: ToolCapability) -> Verdict | None:
        """What is said about this very tool or one of its tags; a skill cannot overrule it."""
        called = tool.spec.model_name(capability)
        said = [name for name in self.tools if _is_about(name, called) or _is_about(name, tool.id)]
        if said:
            return self.tools[max(said, key=lambda name: (name == called, len(name)))]
        by_tag = [self.tags[tag] for tag in tool.spec.tags if tag in self.tags]
        return strictest(by_tag) if by_tag else None

    def _by_effect(self, tool: Tool, capability: ToolCapability) -> Verdict:
        effects = tool.spec.effects_of(capability)
        said = {
            "destructive": effects.destructive,
            "changing": not effects.read_only,
            "idempotent": effects.idempotent,
            "read_only": effects.read_only,
        }
        return next(
            (self.effects[name] for name, holds in said.items() if holds and name in self.effects), self.default
        )


def _is_about(name: str, called: str) -> bool:
    return name == called or fnmatchcase(called, name)


def strictest(verdicts: Iterable[Verdict]) -> Verdict:
    """Where several tools may be called for one call; what nothing is known about may be called, and is not found."""
    return max(verdicts, key=_VERDICTS.index, default="allow")


class Person(Protocol):
    """Somebody who can be asked while a run goes on. None means: not now, let the run wait."""

    async def answer(self, question: Question, /) -> str | None: ...

    async def approve(self, request: ApprovalRequest, /) -> Approval | None: ...
