"""`ferrule runs`: what was asked before, and what came of it."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any

from ferrule.agent.run import BOOKS, Run
from ferrule.cli import show
from ferrule.cli.session import Session, run
from ferrule.cli.terminal import say
from ferrule.describe.sentences import on_one_line
from ferrule.messages import Message, text_of_message
from ferrule.workflow.trajectory import trajectory_of


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
        ("run", "when", "state", "turns", "steps", "task"),
        [
            (one.id, f"{datetime.fromtimestamp(moment):%Y-%m-%d %H:%M}", one.state.value, str(one.turns))
            + (str(len(one.steps) + one.planned), on_one_line(one.task))
            for one, moment in found
        ],
        empty='There are no runs yet. Ask something: ferrule ask "what is 2 + 2?"',
        cut=(5,),
    )


def show_run(session: Session, run_id: str, *, as_json: bool) -> None:
    """Its history; as JSON, as OpenAI's API takes it."""

    async def story() -> list[Message]:
        async with session.store() as store:
            return await trajectory_of(run_id, store)

    messages = run(story())
    if as_json:
        show.as_json(messages)
        return
    for message in messages:
        for line in _lines(message):
            say(line)


def export_runs(session: Session, run_ids: list[str], *, output: Path | None) -> None:
    """Trajectories in chat format, one JSON object per line; all runs unless some are named."""

    async def story() -> int:
        async with session.store() as store:
            wanted = run_ids or [book.removeprefix(BOOKS) for book in await store.books(BOOKS)]
            for run_id in run_ids:
                await Run.load(run_id, store)  # before anything is written: one of them may not be there
            with output.open("w", encoding="utf-8") if output is not None else nullcontext(sys.stdout) as file:
                for run_id in wanted:
                    found = await Run.load(run_id, store)
                    line = {
                        "run_id": run_id,
                        "task": found.task,
                        "state": found.state.value,
                        "messages": await trajectory_of(run_id, store),
                    }
                    file.write(json.dumps(line, ensure_ascii=False) + "\n")
            return len(wanted)

    count = run(story())
    if output is not None:
        say(f"{show.counted(count, 'run')} written to {output}.")


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
        "calls": len(one.steps) + one.planned,
        "text": one.text,
    }


def _lines(message: Message) -> list[str]:
    role = message["role"]
    said = [f"{role}: {text_of_message(message)}"] if message.get("content") else []
    asked = message.get("tool_calls") or ()
    return said + [f"{role} calls {c['function']['name']} {c['function']['arguments']}" for c in asked]
