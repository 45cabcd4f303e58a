"""`ferrule failures`: what runs have learned from their failures."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime

from ferrule.cli import show
from ferrule.cli.session import Session, run
from ferrule.cli.terminal import say
from ferrule.content import as_text
from ferrule.describe.sentences import on_one_line
from ferrule.memory.patterns import FailureBook, FailurePattern


def list_failures(session: Session, tool: str | None, *, as_json: bool) -> None:
    """The weightiest first."""

    async def story() -> list[FailurePattern]:
        async with session.store() as store:
            book = FailureBook(store)
            await book.load()
            return book.patterns(tool)

    found = run(story())
    if as_json:
        show.as_json([asdict(pattern) for pattern in found])
        return
    show.table(
        ("tool", "action", "where", "failed with", "error", "worked instead", "times", "last"),
        [
            (p.tool_id, p.action, p.host, as_text(p.parameters), on_one_line(p.error))
            + (
                "" if p.cure is None else as_text(p.cure),
                f"{p.count:.3g}",
                f"{datetime.fromtimestamp(p.last_at):%m-%d}",
            )
            for p in found
        ],
        empty="Nothing has failed so far that is worth remembering.",
        cut=(3, 4, 5),
    )


def forget_failures(session: Session, tool: str | None) -> None:
    """What was learned, of one tool or of all."""

    async def story() -> int:
        async with session.store() as store:
            return await FailureBook(store).forget(tool)

    say(f"{show.counted(run(story()), 'failure')} forgotten.")
