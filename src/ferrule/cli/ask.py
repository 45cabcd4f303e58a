"""`ferrule ask`: one question, answered with tools."""

from __future__ import annotations

import contextlib
import sys

import typer

from ferrule.agent import AgentAnswer, AgentState
from ferrule.cli import show
from ferrule.cli.asking import ask_at_the_terminal, read_line
from ferrule.cli.making import make_agent, model_of
from ferrule.cli.session import USAGE, Session, fail, run
from ferrule.cli.talking import PersonAtTheTerminal, Voice, say_what_it_waits_for
from ferrule.library import UnifiedToolLibrary
from ferrule.models import close_model

WAITING, STOPPED = 8, 9


def answer_question(
    session: Session,
    question: str | None,
    *,
    model: str | None,
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
    voice = Voice(quiet=quiet or as_json, stream=not as_json)

    async def story() -> AgentAnswer:
        engine = session.engine(on_elicit=ask_at_the_terminal(contextlib.nullcontext))
        async with UnifiedToolLibrary(engine=engine) as library:
            person = PersonAtTheTerminal(read_line, yes=yes)
            section = session.config().agent
            agent = make_agent(
                section, library, model_of(section, model), name="cli", tools=tools, turns=turns, person=person
            )
            try:
                if resume is not None:
                    return await agent.resume(resume, question or None, approvals=approve, on_event=voice)
                return await agent.run(question or "", on_event=voice)
            finally:
                await close_model(agent.model)

    answer = run(story())
    if as_json:
        show.as_json(answer.to_dict())
    elif answer.state is not AgentState.WAITING:
        voice.finish(answer)
    if not as_json:
        say_what_it_waits_for(answer)
    if answer.state is not AgentState.FINISHED:
        raise typer.Exit(WAITING if answer.state is AgentState.WAITING else STOPPED)
