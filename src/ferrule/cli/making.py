"""The agent and the orchestrator of a project, as `ferrule.toml` and the command's own options describe it."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from ferrule.agent import Agent, ApprovalPolicy, Person, RunLimits
from ferrule.agent.approval import Verdict
from ferrule.config import AgentSection, ApprovalSection
from ferrule.errors import SetupError
from ferrule.library import UnifiedToolLibrary
from ferrule.messages import Usage
from ferrule.models import Model, choose_model
from ferrule.names import did_you_mean
from ferrule.orchestrator import Orchestrator


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


def make_orchestrator(
    section: AgentSection,
    library: UnifiedToolLibrary,
    model: Model,
    *,
    strategy: str | None,
    tools: list[str] | None,
    turns: int | None,
    person: Person,
) -> Orchestrator:
    """What the command does not say, the project does. The library must be open: tools are looked up in it."""
    wanted = tools if tools is not None else section.tools
    check_tools(wanted, library)
    return Orchestrator(
        library,
        model,
        workflow=section.workflow,
        strategy=strategy or section.strategy,
        policy=policy_of(section.approval),
        person=person,
        limits=limits_of(section, turns),
        tools=wanted,
        instructions=section.instructions,
    )


def limits_of(section: AgentSection, turns: int | None) -> RunLimits:
    return RunLimits(
        turns=turns or section.turns,
        calls=section.calls,
        tokens=section.tokens,
        seconds=section.seconds,
        cost=section.cost,
        price=price_of(section),
    )


def price_of(section: AgentSection) -> Callable[[Usage], float] | None:
    """What a usage costs, where the project says what tokens do."""
    into, out = section.input_price, section.output_price
    if into is None and out is None:
        return None
    return lambda usage: (usage.input_tokens * (into or 0.0) + usage.output_tokens * (out or 0.0)) / 1_000_000


def check_tools(tools: list[str] | None, library: UnifiedToolLibrary) -> None:
    """SetupError for a tool that is not there."""
    known = library.engine.registry.snapshot().by_id
    for name in tools or ():
        if name not in known:
            raise SetupError(f"There is no tool {name!r}.{did_you_mean(name, known)} `ferrule tools list` shows all.")


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
