"""`ferrule runs` and `ferrule failures`: earlier runs, and the failures stored from them."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from ferrule.agent.answer import AgentState
from ferrule.agent.run import RUN_PREFIX, Run, lock_run
from ferrule.cli import printing
from ferrule.cli.ask import ModelName, run_question
from ferrule.cli.session import AsJson, MaxCount, RunId, run
from ferrule.cli.terminal import echo
from ferrule.core.messages import Message, text_of_message
from ferrule.memory.failure_history import FailureHistory, FailurePattern
from ferrule.texts.shorten import single_line

OfTool = Annotated[str | None, typer.Argument(help="Only this tool.")]

runs_app = typer.Typer(help="List, show, resume, export and delete runs.", no_args_is_help=True)
failures_app = typer.Typer(help="List and delete the failures stored from earlier runs.", no_args_is_help=True)


@runs_app.command("list")
def list_runs(
    context: typer.Context,
    limit: MaxCount = 20,
    as_json: AsJson = False,
) -> None:
    """List runs, the latest first."""

    async def command() -> list[tuple[Run, float]]:
        async with context.obj.store() as store:
            streams = list((await store.list_streams(RUN_PREFIX)).items())[:limit]
            return [
                (await Run.load_and_detect_interruption(stream.removeprefix(RUN_PREFIX), store), time)
                for stream, time in streams
            ]

    runs = run(command())
    if as_json:
        printing.print_json([_describe_run(entry, time) for entry, time in runs])
        return
    printing.print_table(
        ("run", "when", "state", "turns", "steps", "task"),
        [
            (entry.id, f"{datetime.fromtimestamp(time):%Y-%m-%d %H:%M}", entry.state.value, str(entry.turns))
            + (str(len(entry.steps) + entry.finished_plan_steps), single_line(entry.task))
            for entry, time in runs
        ],
        empty='No runs yet. Ask something: ferrule ask "what is 2 + 2?"',
        cut=(5,),
    )


@runs_app.command("show")
def show_run(context: typer.Context, run_id: RunId, as_json: AsJson = False) -> None:
    """Print the history of a run; with --json in OpenAI's message format."""

    async def command() -> Run:
        async with context.obj.store() as store:
            return await Run.load_and_detect_interruption(run_id, store)

    inspected = run(command())
    if as_json:
        printing.print_json(inspected.messages)
        return
    for message in inspected.messages:
        for line in _message_lines(message):
            echo(line)
    echo(f"run: {inspected.state.value}" + (f" ({single_line(inspected.reason)})" if inspected.reason else ""))
    if inspected.state is AgentState.INTERRUPTED:
        echo(f"Resume with: ferrule runs resume {run_id}")


@runs_app.command("resume")
def resume_run(
    context: typer.Context,
    run_id: RunId,
    answer: Annotated[str | None, typer.Argument(help="Your answer to its question.")] = None,
    model: ModelName = None,
    approve: Annotated[
        bool | None, typer.Option("--approve/--deny", help="Allow or refuse the calls it waits for.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Approve every call that needs approval.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the answer.")] = False,
    as_json: AsJson = False,
) -> None:
    """Resume a run that waits for you or was interrupted; finished calls are not repeated."""
    run_question(
        context.obj,
        answer,
        model=model,
        strategy=None,
        tools=None,
        turns=None,
        resume=run_id,
        approve=approve,
        yes=yes,
        quiet=quiet,
        as_json=as_json,
    )


@runs_app.command("export")
def export_runs(
    context: typer.Context,
    run_ids: Annotated[list[str] | None, typer.Argument(help="The runs; default: all.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write; default: standard output.")
    ] = None,
) -> None:
    """Write runs as conversations, one JSON object per line, in chat format."""

    async def command() -> int:
        async with context.obj.store() as store:
            selected = run_ids or [stream.removeprefix(RUN_PREFIX) for stream in await store.list_streams(RUN_PREFIX)]
            for run_id in run_ids or ():
                await Run.load(run_id, store)  # before anything is written: a run may not exist
            with (
                output.open("w", encoding="utf-8", errors="backslashreplace")
                if output is not None
                else nullcontext(sys.stdout) as file
            ):
                for run_id in selected:
                    loaded = await Run.load_and_detect_interruption(run_id, store)
                    line = {
                        "run_id": run_id,
                        "task": loaded.task,
                        "state": loaded.state.value,
                        "messages": loaded.messages,
                    }
                    file.write(json.dumps(line, ensure_ascii=False) + "\n")
            return len(selected)

    count = run(command())
    if output is not None:
        echo(f"{printing.format_count(count, 'run')} written to {output}.")


@runs_app.command("forget")
def forget_run(context: typer.Context, run_id: RunId) -> None:
    """Delete the history of a run. The records of its calls stay."""

    async def command() -> None:
        async with context.obj.store() as store, lock_run(store, run_id):
            await Run.load(run_id, store)
            await store.delete_entries(RUN_PREFIX + run_id)

    run(command())
    echo(f"The run {run_id} is deleted.")


@failures_app.command("list")
def list_failures(context: typer.Context, tool: OfTool = None, as_json: AsJson = False) -> None:
    """List stored failures with their arguments and what worked instead; the most frequent first."""

    async def command() -> list[FailurePattern]:
        async with context.obj.store() as store:
            history = FailureHistory(store)
            await history.load()
            return history.patterns(tool)

    patterns = run(command())
    if as_json:
        printing.print_json(
            [{**asdict(pattern), "last_at": printing.format_time(pattern.last_at)} for pattern in patterns]
        )
        return
    printing.print_table(
        ("tool", "action", "failure", "parameters", "what helped", "count", "last"),
        [
            (p.tool_id, p.action, p.failure_class, ", ".join(p.parameters), p.what_helped or "")
            + (f"{p.count:.3g}", f"{datetime.fromtimestamp(p.last_at):%m-%d}")
            for p in patterns
        ],
        empty="No failures are stored.",
        cut=(3, 4),
    )


@failures_app.command("forget")
def forget_failures(context: typer.Context, tool: OfTool = None) -> None:
    """Delete the stored failures of one tool, or of all."""

    async def command() -> int:
        async with context.obj.store() as store:
            return await FailureHistory(store).forget(tool)

    echo(f"{printing.format_count(run(command()), 'failure')} deleted.")


def _describe_run(entry: Run, time: float) -> dict[str, Any]:
    return {
        "run_id": entry.id,
        "at": printing.format_time(time),
        "state": entry.state.value,
        "task": entry.task,
        "turns": entry.turns,
        "calls": len(entry.steps) + entry.finished_plan_steps,
        "text": entry.text,
        "reason": entry.reason,
    }


def _message_lines(message: Message) -> list[str]:
    role = message["role"]
    lines = [f"{role}: {text_of_message(message)}"] if message.get("content") else []
    calls = message.get("tool_calls") or ()
    return lines + [f"{role} calls {c['function']['name']} {c['function']['arguments']}" for c in calls]
