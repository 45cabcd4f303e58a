"""The agent of a project, as `ferrule.toml` and the command's own options describe it."""

from __future__ import annotations

from typing import cast

from ferrule.agent import Agent, ApprovalPolicy, Person, RunLimits
from ferrule.agent.approval import Verdict
from ferrule.config import AgentSection, ApprovalSection
from ferrule.library import UnifiedToolLibrary
from ferrule.models import Model, choose_model


def make_agent(
    section: AgentSection,
    library: UnifiedToolLibrary,
    model: Model,
    *,
    name: str,
    tools: list[str] | None,
    turns: int | None,
    person: Person,
) -> Agent:
    """What the command does not say, the project does."""
    return Agent(
        library,
        model,
        name=name,
        instructions=section.instructions,
        tools=tools if tools is not None else section.tools,
        core_tools=section.core_tools,
        limits=limits_of(section, turns),
        approval=policy_of(section.approval),
        person=person,
    )


def limits_of(section: AgentSection, turns: int | None) -> RunLimits:
    return RunLimits(turns=turns or section.turns, calls=section.calls, tokens=section.tokens, seconds=section.seconds)


def model_of(section: AgentSection, named: str | None) -> Model:
    return choose_model(named or section.model)


def policy_of(section: ApprovalSection) -> ApprovalPolicy:
    """The policy a project states; SetupError for a word that is none of allow, ask and deny."""
    return ApprovalPolicy(
        tools=cast(dict[str, Verdict], section.tools),
        tags=cast(dict[str, Verdict], section.tags),
        effects=cast(dict[str, Verdict], section.effects),
        default=cast(Verdict, section.default),
    )
