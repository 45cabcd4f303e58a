"""`ferrule ask`: one question, answered with tools."""

from __future__ import annotations

import sys
from typing import Any

import typer

from ferrule.agent import AgentState
from ferrule.cli import show
from ferrule.cli.asking import ask_at_the_terminal, read_line
from ferrule.cli.making import make_orchestrator, model_of
from ferrule.cli.plan_tree import PlanTree
from ferrule.cli.session import USAGE, Session, fail, run
from ferrule.cli.talking import PersonAtTheTerminal, Voice, say_what_it_waits_for
from ferrule.library import UnifiedToolLibrary
from ferrule.models import close_model
from ferrule.orchestrator import OrchestratorResult
from ferrule.orchestrator.strategy import StrategyChosen

WAITING, STOPPED = 8, 9


def answer_question(
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
    quiet: bool,
    as_json: bool,
) -> None:
    if question == "-":
        question = sys.stdin.read().strip()
    if not question and resume is None:
        fail('What is the question? Try: ferrule ask "what is 2 + 2?"', code=USAGE)
    quiet = quiet or as_json
    voice, tree = Voice(quiet=quiet, stream=not as_json), PlanTree(quiet=quiet)

    begun = [resume] if resume else []

    def seen(event: Any) -> None:
        if isinstance(event, StrategyChosen):
            begun.append(event.run_id)
        tree(event)
        voice(event)

    async def story() -> OrchestratorResult:
        section = session.config().agent
        chosen = model_of(section, model)
        engine = session.engine(on_elicit=ask_at_the_terminal(tree.hidden))
        person = PersonAtTheTerminal(read_line, yes=yes, hidden=tree.hidden)
        try:
            async with UnifiedToolLibrary(engine=engine) as library:
                made = make_orchestrator(
                    section, library, chosen, strategy=strategy, tools=tools, turns=turns, person=person
                )
                async with made as orchestrator:
                    if resume is not None:
                        return await orchestrator.resume(resume, question or None, approvals=approve, on_event=seen)
                    return await orchestrator.process_task(question or "", on_event=seen)
        finally:
            tree.finish()
            await close_model(chosen)

    result = run(story(), if_stopped=lambda: f" Go on with: ferrule runs resume {begun[-1]}" if begun else "")
    if as_json:
        show.as_json(result.to_dict())
    elif result.state is not AgentState.WAITING:
        voice.finish(result.answer)
    if not as_json:
        say_what_it_waits_for(result)
    if result.state is not AgentState.FINISHED:
        raise typer.Exit(WAITING if result.state is AgentState.WAITING else STOPPED)
