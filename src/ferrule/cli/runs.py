"""`ferrule runs`: what was asked before, and what came of it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer

from ferrule.agent.run import BOOKS, Run
from ferrule.cli import show
from ferrule.cli.session import Session, run
from ferrule.cli.terminal import say
from ferrule.describe.sentences import on_one_line
from ferrule.messages import Message, text_of_message

runs_app = typer.Typer(help="See earlier runs of agents.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@runs_app.command("list")
def list_runs(
    context: typer.Context,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many, the latest first.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List runs, the latest first."""
    session: Session = context.obj

    async def story() -> list[tuple[Run, float]]:
        async with session.store() as store:
            books = list((await store.books(BOOKS)).items())[:limit]
            return [(await Run.load(book.removeprefix(BOOKS), store), moment) for book, moment in books]

    found = run(story())
    if as_json:
        show.as_json([_described(one, moment) for one, moment in found])
        return
    show.table(
        ("run", "when", "state", "turns", "calls", "task"),
        [
            (one.id, f"{datetime.fromtimestamp(moment):%Y-%m-%d %H:%M}", one.state.value, str(one.turns))
            + (str(len(one.steps)), on_one_line(one.task))
            for one, moment in found
        ],
        empty='There are no runs yet. Ask something: ferrule ask "what is 2 + 2?"',
        cut=(5,),
    )


@runs_app.command("show")
def show_run(
    context: typer.Context, run_id: Annotated[str, typer.Argument(help="The run.")], as_json: AsJson = False
) -> None:
    """Print the history of a run; with --json as OpenAI's API takes it."""
    session: Session = context.obj

    async def story() -> Run:
        async with session.store() as store:
            return await Run.load(run_id, store)

    found = run(story())
    if as_json:
        show.as_json(found.messages)
        return
    for message in found.messages:
        for line in _lines(message):
            say(line)


@runs_app.command("forget")
def forget_run(context: typer.Context, run_id: Annotated[str, typer.Argument(help="The run.")]) -> None:
    """Delete the history of a run. The records of its calls stay."""
    session: Session = context.obj

    async def story() -> int:
        async with session.store() as store:
            await Run.load(run_id, store)
            return await store.forget_notes(BOOKS + run_id)

    run(story())
    say(f"The run {run_id} is forgotten.")


def _described(one: Run, moment: float) -> dict[str, Any]:
    return {
        "run_id": one.id,
        "at": datetime.fromtimestamp(moment).astimezone().isoformat(),
        "state": one.state.value,
        "task": one.task,
        "turns": one.turns,
        "calls": len(one.steps),
        "text": one.text,
    }


def _lines(message: Message) -> list[str]:
    role = message["role"]
    said = [f"{role}: {text_of_message(message)}"] if message.get("content") else []
    asked = message.get("tool_calls") or ()
    return said + [f"{role} calls {c['function']['name']} {c['function']['arguments']}" for c in asked]
