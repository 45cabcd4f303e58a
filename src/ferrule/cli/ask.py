"""`ferrule ask`: one question, answered with tools."""

from __future__ import annotations

import contextlib
import sys
from typing import Annotated

import typer

from ferrule.agent import Agent, AgentAnswer, AgentState, RunLimits
from ferrule.cli import show
from ferrule.cli.asking import ask_at_the_terminal, read_line
from ferrule.cli.session import USAGE, Session, fail, run
from ferrule.cli.talking import PersonAtTheTerminal, Voice, say_what_it_waits_for
from ferrule.library import UnifiedToolLibrary
from ferrule.models import close_model

WAITING, STOPPED = 8, 9

ModelName = Annotated[
    str | None,
    typer.Option("--model", "-m", help="openai:NAME, anthropic:NAME, local, local:FILE.gguf or offline."),
]


def ask(
    context: typer.Context,
    question: Annotated[str | None, typer.Argument(help="What you want to know or have done; - reads it.")] = None,
    model: ModelName = None,
    tools: Annotated[
        list[str] | None, typer.Option("--tool", "-t", help="Use only this tool; may be given again.")
    ] = None,
    turns: Annotated[int, typer.Option("--turns", min=1, help="How often the model may be asked.")] = 20,
    resume: Annotated[
        str | None, typer.Option("--resume", help="Go on with this run; QUESTION is your answer.")
    ] = None,
    approve: Annotated[
        bool | None, typer.Option("--approve/--deny", help="Your word on the calls a resumed run waits for.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Agree to every call that needs it.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the answer alone.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Ask a question, or have something done.

    Works without a key: the offline model says what it can and cannot do. Exit codes: 0 answered, 2 wrong usage,
    8 it waits for you, 9 it stopped without an answer, 130 stopped by Ctrl-C.
    """
    if question == "-":
        question = sys.stdin.read().strip()
    if not question and resume is None:
        fail('What is the question? Try: ferrule ask "what is 2 + 2?"', code=USAGE)
    session: Session = context.obj
    voice = Voice(quiet=quiet or as_json, stream=not as_json)

    async def story() -> AgentAnswer:
        engine = session.engine(on_elicit=ask_at_the_terminal(contextlib.nullcontext))
        async with UnifiedToolLibrary(engine=engine) as library:
            person = PersonAtTheTerminal(read_line, yes=yes)
            agent = Agent(library, model, name="cli", tools=tools, limits=RunLimits(turns=turns), person=person)
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
