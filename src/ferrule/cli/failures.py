"""`ferrule failures`: what runs have learned from their failures."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Annotated

import typer

from ferrule.cli import show
from ferrule.cli.session import Session, run
from ferrule.cli.terminal import say
from ferrule.content import as_text
from ferrule.describe.sentences import on_one_line
from ferrule.memory.patterns import FailureBook, FailurePattern

failures_app = typer.Typer(help="See and forget what failed in earlier runs.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ToolName = Annotated[str | None, typer.Argument(help="Of this tool only.")]


@failures_app.command("list")
def list_failures(context: typer.Context, tool: ToolName = None, as_json: AsJson = False) -> None:
    """List what failed, with what, and what worked instead; the weightiest first."""
    session: Session = context.obj

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


@failures_app.command("forget")
def forget_failures(context: typer.Context, tool: ToolName = None) -> None:
    """Forget what was learned, of one tool or of all."""
    session: Session = context.obj

    async def story() -> int:
        async with session.store() as store:
            return await FailureBook(store).forget(tool)

    say(f"{show.counted(run(story()), 'failure')} forgotten.")
