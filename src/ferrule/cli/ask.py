"""`ferrule ask`, and building the agent and orchestrator of a project from `ferrule.toml` and options."""

from __future__ import annotations

import asyncio
import os
import re
import select
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from ferrule.agent import Agent, AgentState, Person, RunLimits
from ferrule.cli import printing
from ferrule.cli.elicitation import terminal_elicitation
from ferrule.cli.run_view import PlanTree, RunView, TerminalUser, print_waiting
from ferrule.cli.session import EXIT_USAGE, Session, fail, run
from ferrule.cli.terminal import print_error, read_line
from ferrule.config import AgentSection
from ferrule.core.messages import Message
from ferrule.core.model import can_reason
from ferrule.core.names import did_you_mean
from ferrule.core.permission import Principal
from ferrule.core.prices import ModelPrice
from ferrule.engine import ToolEngine
from ferrule.errors import FerruleError, SetupError
from ferrule.library.library import UnifiedToolLibrary
from ferrule.memory.conversation import DEFAULT_CONVERSATION
from ferrule.models import Model, choose_model, close_model
from ferrule.orchestrator import Orchestrator, OrchestratorResult
from ferrule.orchestrator.orchestrator import DEFAULT_CACHE_TTL
from ferrule.orchestrator.strategy_runner import StrategyChosen, history_as_messages
from ferrule.texts.language import detect_language


def build_agent(
    section: AgentSection,
    library: UnifiedToolLibrary,
    model: Model,
    *,
    name: str,
    tools: list[str] | None,
    turns: int | None,
    person: Person,
) -> Agent:
    """Options of the command override the project's configuration."""
    return Agent(
        library,
        model,
        name=name,
        instructions=section.instructions,
        tools=tools if tools is not None else section.tools,
        core_tools=section.core_tools,
        limits=build_limits(section, turns, library.engine.costs.find_model_price(model.name)),
        person=person,
    )


def build_orchestrator(
    section: AgentSection,
    library: UnifiedToolLibrary,
    model: Model,
    *,
    strategy: str | None,
    tools: list[str] | None,
    turns: int | None,
    person: Person | None,
    principal: Principal | None = None,
    no_cache: bool = False,
) -> Orchestrator:
    """Options of the command override the project's configuration. The library must be open."""
    selected = tools if tools is not None else section.tools
    check_tools_exist(selected, library)
    return Orchestrator(
        library,
        model,
        workflow=section.workflow,
        strategy=strategy or section.strategy,
        person=person,
        limits=build_limits(section, turns, library.engine.costs.find_model_price(model.name)),
        tools=selected,
        instructions=section.instructions,
        principal=principal,
        cache_ttl=None if no_cache else DEFAULT_CACHE_TTL,
    )


def build_limits(section: AgentSection, turns: int | None, price: ModelPrice | None) -> RunLimits:
    if section.cost is not None and price is None:
        raise SetupError(
            "cost in [agent] needs the price of the model: write it into [prices.models], or set input_price and "
            "output_price in [agent]."
        )
    return RunLimits(
        turns=turns or section.turns,
        calls=section.calls,
        tokens=section.tokens,
        seconds=section.seconds,
        cost=section.cost,
        price=None if price is None else price.cost_of,
    )


def check_tools_exist(tools: list[str] | None, library: UnifiedToolLibrary) -> None:
    """Raise SetupError for a tool that does not exist."""
    tool_ids = library.engine.registry.snapshot().by_id
    for name in tools or ():
        if name not in tool_ids:
            raise SetupError(
                f"There is no tool {name!r}.{did_you_mean(name, tool_ids)} `ferrule tools list` shows all."
            )


def select_model(section: AgentSection, named: str | None) -> Model:
    return choose_model(named or section.model)


MAX_ATTACHED_CHARACTERS = 1_000_000
PIPE_TIMEOUT = 3.0
"""Seconds until a pipe that nobody writes to counts as empty: programs may inherit one."""


def add_attachments(question: str, files: Sequence[Path]) -> str:
    """The question with the text that is piped in and the text of files, each in a fence that it does not contain."""
    texts = {"stdin": text} if (text := _read_pipe().strip()) else {}
    for path in files:
        try:
            texts[path.name] = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            fail(f"{path} is not a text file. Ask about its path instead.", code=EXIT_USAGE)
        except OSError as error:
            fail(f"Cannot read {path}: {error.strerror}.", code=EXIT_USAGE)
    size = sum(map(len, texts.values()))
    if size > MAX_ATTACHED_CHARACTERS:
        fail(f"{size:,} characters are attached; {MAX_ATTACHED_CHARACTERS:,} are allowed.", code=EXIT_USAGE)
    for name, text in texts.items():
        fence = "`" * (1 + max([2, *(len(ticks) for ticks in re.findall("`+", text))]))
        question += f"\n\n{name}:\n{fence}\n{text.rstrip()}\n{fence}"
    return question


def _read_pipe() -> str:
    """What is piped or redirected to standard input; nothing where it is a terminal or a device."""
    mode = os.fstat(sys.stdin.fileno()).st_mode if sys.stdin is not None and not sys.stdin.closed else 0
    if not (stat.S_ISFIFO(mode) or stat.S_ISREG(mode)):
        return ""
    if stat.S_ISFIFO(mode) and not select.select([sys.stdin], [], [], PIPE_TIMEOUT)[0]:
        print_error(f"ferrule: standard input is a pipe without data for {PIPE_TIMEOUT:g} s; it is not read.")
        return ""
    return sys.stdin.read()


async def _read_conversation(orchestrator: Orchestrator) -> list[Message]:
    await orchestrator.memory.synchronize(DEFAULT_CONVERSATION)
    return history_as_messages(await orchestrator.memory.create_snapshot(DEFAULT_CONVERSATION).turns())


EXIT_WAITING, EXIT_STOPPED = 8, 9
NEW_SERVER_TIMEOUT = 10.0
"""Seconds that a question waits for MCP servers that have never listed their actions."""


async def _wait_for_new_servers(engine: ToolEngine, *, quiet: bool) -> None:
    """Let a model see the actions of servers that were just added; a slow server does not hold up the question."""
    if not engine.is_discovering:
        return
    try:
        async with asyncio.timeout(NEW_SERVER_TIMEOUT):
            await engine.wait_for_discovery()
    except TimeoutError:
        if not quiet:
            print_error("ferrule: an MCP server has not listed its actions yet, and the question does not wait for it.")


def run_question(
    session: Session,
    question: str | None,
    *,
    model: str | None,
    strategy: str | None,
    tools: list[str] | None,
    turns: int | None,
    resume: str | None,
    approve: bool | None,
    yes: bool,
    attach: Sequence[Path] = (),
    continues: bool = False,
    no_cache: bool = False,
    quiet: bool,
    as_json: bool,
) -> None:
    if question == "-":
        question = sys.stdin.read().strip()
    elif question and resume is None:
        question = add_attachments(question, attach)
    if not question and resume is None:
        fail('No question given. Try: ferrule ask "what is 2 + 2?"', code=EXIT_USAGE)
    quiet = quiet or as_json
    view, tree = RunView(question or "", quiet=quiet, stream=not as_json), PlanTree(quiet=quiet)

    run_ids = [resume] if resume else []

    def on_event(event: Any) -> None:
        if isinstance(event, StrategyChosen):
            run_ids.append(event.run_id)
        tree(event)
        view(event)

    async def command() -> OrchestratorResult:
        section = session.config().agent
        chosen = select_model(section, model)
        view.shows_results = can_reason(chosen)
        engine = session.engine(on_elicit=terminal_elicitation(tree.hidden))
        person = TerminalUser(read_line, yes=yes, hidden=tree.hidden, language=detect_language(question or ""))
        try:
            async with UnifiedToolLibrary(engine=engine, hub=session.config().hub) as library:
                built = build_orchestrator(
                    section,
                    library,
                    chosen,
                    strategy=strategy,
                    tools=tools,
                    turns=turns,
                    person=person,
                    no_cache=no_cache,
                )
                async with built as orchestrator:
                    await _wait_for_new_servers(engine, quiet=quiet)
                    if resume is not None:
                        return await orchestrator.resume(resume, question or None, approvals=approve, on_event=on_event)
                    history = await _read_conversation(orchestrator) if continues else ()
                    return await orchestrator.process_task(question or "", history=history, on_event=on_event)
        except (asyncio.CancelledError, FerruleError):
            if view.output_error is not None:
                raise view.output_error from None
            raise
        finally:
            tree.finish()
            await close_model(chosen)

    result = run(
        command(), after_interrupt=lambda: f" Resume with: ferrule runs resume {run_ids[-1]}" if run_ids else ""
    )
    if as_json:
        printing.print_json(result.to_dict())
    else:
        _print_answer(result, view, quiet=quiet)
    if result.state is not AgentState.FINISHED:
        raise typer.Exit(EXIT_WAITING if result.state is AgentState.WAITING else EXIT_STOPPED)


def _print_answer(result: OrchestratorResult, view: RunView, *, quiet: bool) -> None:
    if result.state is not AgentState.WAITING:
        view.finish(result.answer)
    print_waiting(result, detect_language(result.question))
    if result.cached and not quiet:
        print_error("(This answer is from the cache; --no-cache asks again.)")
