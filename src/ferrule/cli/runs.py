"""`ferrule runs`: what was asked before, and what came of it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ferrule.agent.run import BOOKS, Run
from ferrule.cli import show
from ferrule.cli.session import Session, run
from ferrule.cli.terminal import say
from ferrule.describe.sentences import on_one_line
from ferrule.messages import Message, text_of_message


def list_runs(session: Session, *, limit: int, as_json: bool) -> None:
    """The latest first."""

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


def show_run(session: Session, run_id: str, *, as_json: bool) -> None:
    """Its history; as JSON, as OpenAI's API takes it."""

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


def forget_run(session: Session, run_id: str) -> None:
    """Its history; the records of its calls stay."""

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
