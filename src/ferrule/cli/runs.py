"""`ferrule runs` and `ferrule failures`: earlier runs, and the failures stored from them."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from ferrule.agent.answer import AgentState
from ferrule.agent.run import RUN_PREFIX, Run, lock_run
from ferrule.cli import printing
from ferrule.cli.session import Session, run
from ferrule.cli.terminal import echo
from ferrule.core.messages import Message, text_of_message
from ferrule.memory.failure_history import FailureHistory, FailurePattern
from ferrule.texts.shorten import single_line
from ferrule.workflow.history import load_trajectory


def list_runs(session: Session, *, limit: int, as_json: bool) -> None:
    """Print the runs, the latest first."""

    async def command() -> list[tuple[Run, float]]:
        async with session.store() as store:
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


def show_run(session: Session, run_id: str, *, as_json: bool) -> None:
    """Print the history of a run; with `as_json` in the format of OpenAI's API."""

    async def command() -> tuple[list[Message], Run]:
        async with session.store() as store:
            return await load_trajectory(run_id, store), await Run.load_and_detect_interruption(run_id, store)

    messages, inspected = run(command())
    if as_json:
        printing.print_json(messages)
        return
    for message in messages:
        for line in _message_lines(message):
            echo(line)
    echo(f"run: {inspected.state.value}" + (f" ({single_line(inspected.reason)})" if inspected.reason else ""))
    if inspected.state is AgentState.INTERRUPTED:
        echo(f"Resume with: ferrule runs resume {run_id}")


def export_runs(session: Session, run_ids: list[str], *, output: Path | None) -> None:
    """Write runs in chat format, one JSON object per line; all runs if `run_ids` is empty."""

    async def command() -> int:
        async with session.store() as store:
            selected = run_ids or [stream.removeprefix(RUN_PREFIX) for stream in await store.list_streams(RUN_PREFIX)]
            for run_id in run_ids:
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
                        "messages": await load_trajectory(run_id, store),
                    }
                    file.write(json.dumps(line, ensure_ascii=False) + "\n")
            return len(selected)

    count = run(command())
    if output is not None:
        echo(f"{printing.format_count(count, 'run')} written to {output}.")


def forget_run(session: Session, run_id: str) -> None:
    """Delete the history of a run; the records of its calls stay."""

    async def command() -> int:
        async with session.store() as store, lock_run(store, run_id):
            await Run.load(run_id, store)
            return await store.delete_entries(RUN_PREFIX + run_id)

    run(command())
    echo(f"The run {run_id} is deleted.")


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


def list_failures(session: Session, tool: str | None, *, as_json: bool) -> None:
    """Print the stored failures, the most important first."""

    async def command() -> list[FailurePattern]:
        async with session.store() as store:
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


def forget_failures(session: Session, tool: str | None) -> None:
    """Delete the stored failures of one tool, or of all."""

    async def command() -> int:
        async with session.store() as store:
            return await FailureHistory(store).forget(tool)

    echo(f"{printing.format_count(run(command()), 'failure')} deleted.")
