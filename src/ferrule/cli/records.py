"""What was recorded: `ferrule calls|stats|costs|budgets|artifacts|store|runs|failures`, and tasks made from runs."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from ferrule.agent.answer import AgentState
from ferrule.agent.run import RUN_PREFIX, Run, lock_run
from ferrule.cli import printing
from ferrule.cli.session import (
    AsJson,
    MaxCount,
    ModelName,
    Output,
    RunId,
    Session,
    fail,
    open_output,
    parse_since,
    run_with_store,
)
from ferrule.cli.terminal import echo
from ferrule.core.messages import Message
from ferrule.core.names import did_you_mean
from ferrule.evaluation.tasks_from_runs import read_tasks_from_runs
from ferrule.memory.failure_history import FailureHistory, FailurePattern
from ferrule.store import CallStatistics, ToolKnowledgeStore
from ferrule.store.backup import back_up_store, check_store, restore_store
from ferrule.store.location import StoreLocation
from ferrule.store.spending import COST_GROUPS, CostSummary, list_spending, summarize_costs
from ferrule.texts.shorten import single_line
from ferrule.workflow.history import load_trajectory

Folder = Annotated[Path, typer.Argument(help="The folder of the backup.")]

artifacts_app = typer.Typer(help="Read results that are too long for a model.", no_args_is_help=True)
store_app = typer.Typer(help="Copy and check the store; delete what is old.", no_args_is_help=True)


def calls(
    context: typer.Context,
    tool: Annotated[str | None, typer.Option("--tool", help="Only calls of this tool.")] = None,
    conversation: Annotated[str | None, typer.Option("--conversation", help="Only calls of this conversation.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only calls that failed.")] = False,
    since: Annotated[str | None, typer.Option("--since", help="Only since: 10m, 2h, 7d, or a date.")] = None,
    limit: MaxCount = 20,
    as_json: AsJson = False,
) -> None:
    """Show the latest calls."""

    records = run_with_store(
        context.obj,
        lambda store: store.query_call_records(
            tool_name=tool,
            conversation_id=conversation,
            is_success=False if failed else None,
            since=parse_since(since),
            limit=limit,
        ),
    )
    if as_json:
        printing.print_json([record.to_dict() for record in records])
        return
    is_filtered = any(option is not None for option in (tool, conversation, since))
    empty = "No recorded call failed." if failed else printing.NO_CALLS
    printing.print_calls(records, empty="No recorded call matches these options." if is_filtered else empty)


def stats(
    context: typer.Context,
    tool: Annotated[str | None, typer.Option("--tool", help="Only calls of this tool.")] = None,
    since: Annotated[str | None, typer.Option("--since", help="Only since: 10m, 2h, 7d, or a date.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show success rates, durations and costs by tool."""

    async def read(store: ToolKnowledgeStore) -> tuple[CallStatistics, dict[str, CostSummary]]:
        start, keys = parse_since(since), None if tool is None else [tool]
        statistics = await store.get_call_statistics(tool_name=tool, since=start)
        return statistics, await store.query(summarize_costs, "tool", start, keys=keys)

    statistics, summaries = run_with_store(context.obj, read)
    costs = {name: summary.tool_cost for name, summary in summaries.items()}
    if as_json:
        printing.print_json({**statistics.to_dict(), "costs": costs, "cost": sum(costs.values())})
    else:
        printing.print_statistics(statistics, costs)


@artifacts_app.command("get")
def get_artifact(
    context: typer.Context,
    artifact_id: Annotated[str, typer.Argument(help="The id, as the note at the end of a shortened result names it.")],
    output: Output = None,
) -> None:
    """Print a long result whole, as it is stored; text is not escaped."""
    data = context.obj.store().artifacts.get(artifact_id)
    with contextlib.suppress(ValueError):
        document = json.loads(data)
        if isinstance(document, dict) and {*document} == {"result"} and isinstance(document["result"], str):
            data = document["result"].encode("utf-8", "surrogatepass")
    if output is not None:
        output.write_bytes(data)
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(data if data.endswith(b"\n") else data + b"\n")


@store_app.command("clean")
def clean_store(
    context: typer.Context,
    older_than: Annotated[str, typer.Option("--older-than", help="An age such as 12h or 30d, or a date.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would be deleted.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete old calls, runs, conversations, failures, cached answers and artifacts.

    Runs that wait for you or are in progress stay, with their calls.
    """

    limit = parse_since(older_than, "--older-than") or datetime.now(UTC)
    report = run_with_store(context.obj, lambda store: store.delete_records(older_than=limit, dry_run=dry_run))
    if as_json:
        printing.print_json(asdict(report))
        return
    for kind, number in asdict(report).items():
        echo(f"{kind.replace('_', ' ')}: {number}")
    if dry_run:
        echo("Nothing was deleted: this was a dry run.")


@store_app.command()
def backup(context: typer.Context, folder: Folder, as_json: AsJson = False) -> None:
    """Copy the store into a new folder, while servers use it."""
    _copy_store(context.obj, back_up_store, folder, "{store} was copied to {backup}.", as_json=as_json)


@store_app.command()
def restore(context: typer.Context, folder: Folder, as_json: AsJson = False) -> None:
    """Copy a backup to where the project's store is, if there is none."""
    _copy_store(context.obj, restore_store, folder, "{backup} was copied to {store}.", as_json=as_json)


def _copy_store(
    session: Session, copy: Callable[[StoreLocation, Path], object], folder: Path, message: str, *, as_json: bool
) -> None:
    location = session.store().location
    copy(location, folder)
    names = {"store": location.display_name, "backup": str(folder)}
    printing.print_json(names) if as_json else echo(message.format(**names))


@store_app.command()
def check(context: typer.Context, as_json: AsJson = False) -> None:
    """Check whether the file of the store is intact; exits with 1 if it is not."""
    location = context.obj.store().location
    problems = check_store(location)
    if as_json:
        printing.print_json({"store": location.display_name, "problems": problems})
    else:
        echo("\n".join(problems) or f"{location.display_name} is intact.")
    if problems:
        raise typer.Exit(1)


def show_costs(
    context: typer.Context,
    by: Annotated[
        str,
        typer.Option("--by", help="tool, model, run, conversation, principal (a token, for example), tenant or day."),
    ] = "tool",
    since: Annotated[str | None, typer.Option("--since", help="Only since: 10m, 2h, 7d, or a date.")] = None,
    limit: MaxCount = 50,
    as_json: AsJson = False,
) -> None:
    """Show what calls of paid tools and replies of models cost. Prices are those of the time of the call."""

    if by not in COST_GROUPS:
        fail(f"--by takes {', '.join(COST_GROUPS)}, not {by!r}.{did_you_mean(by, COST_GROUPS)}")
    group: Any = by
    summaries = run_with_store(context.obj, lambda store: store.query(summarize_costs, group, parse_since(since)))
    total, currency = CostSummary.total(summaries.values()), context.obj.config().prices.currency
    if as_json:
        costs = {key: summary.to_dict() for key, summary in summaries.items()}
        printing.print_json({"by": by, "currency": currency, "costs": costs, "total": total.to_dict()})
        return
    printing.print_table(
        (by, "cost", "paid calls", "requests", "tokens in", "tokens out"),
        [
            (
                key or "(none)",
                f"{each.cost:.6g}",
                f"{each.calls:,}",
                f"{each.requests:,}",
                f"{each.input_tokens:,}",
                f"{each.output_tokens:,}",
            )
            for key, each in list(summaries.items())[:limit]
        ],
        empty="Nothing with a price was called, and no model that counts tokens was asked.",
        cut=(0,),
    )
    if summaries:
        echo(f"total: {total.cost:.6g} {currency}")
    if total.unpriced_requests:
        echo(
            f"{total.unpriced_requests:,} replies are of models without a price: see [prices.models] in docs/costs.md."
        )


def show_budgets(context: typer.Context, as_json: AsJson = False) -> None:
    """Show the budgets of ferrule.toml, and what was spent of each."""

    budgets = {budget.name: budget for budget in context.obj.config().budgets}
    spending = run_with_store(context.obj, lambda store: store.query(list_spending))
    states = [state for state in spending if state.budget in budgets]
    if as_json:
        printing.print_json(
            [
                {**asdict(budget), "spending": [asdict(state) for state in states if state.budget == budget.name]}
                for budget in budgets.values()
            ]
        )
        return
    rows = [
        (state.budget, budgets[state.budget].per, state.scope, state.period, state.spent, state.extension)
        for state in states
    ]
    unused = [
        (name, each.per, "", "", 0.0, 0.0) for name, each in budgets.items() if name not in {row[0] for row in rows}
    ]
    printing.print_table(
        ("budget", "per", "of", "period", "spent", "amount", "then"),
        [
            (name, per, scope, period, f"{spent:.6g}", f"{budgets[name].amount + more:g}", budgets[name].then)
            for name, per, scope, period, spent, more in (*rows, *unused)
        ],
        empty="There are no budgets. Write [[budgets]] into ferrule.toml.",
        cut=(2,),
    )


# Runs, and the failures stored from them

OfTool = Annotated[str | None, typer.Argument(help="Only this tool.")]

runs_app = typer.Typer(help="List, show, resume, export and delete runs.", no_args_is_help=True)
tasks_app = typer.Typer(help="Make tasks for batches.", no_args_is_help=True)
failures_app = typer.Typer(help="List and delete the failures stored from earlier runs.", no_args_is_help=True)


@runs_app.command("list")
def list_runs(context: typer.Context, limit: MaxCount = 20, as_json: AsJson = False) -> None:
    """List runs, the latest first."""

    async def read(store: ToolKnowledgeStore) -> list[tuple[Run, float]]:
        streams = list((await store.list_streams(RUN_PREFIX)).items())[:limit]
        return [
            (await Run.load_and_detect_interruption(stream.removeprefix(RUN_PREFIX), store), time)
            for stream, time in streams
        ]

    runs = run_with_store(context.obj, read)
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

    async def read(store: ToolKnowledgeStore) -> tuple[list[Message], Run]:
        return await load_trajectory(run_id, store), await Run.load_and_detect_interruption(run_id, store)

    messages, inspected = run_with_store(context.obj, read)
    if as_json:
        printing.print_json(messages)
        return
    printing.print_messages(messages)
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
    from ferrule.cli.ask import run_question

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
    output: Output = None,
) -> None:
    """Write runs as conversations, one JSON object per line, in chat format."""

    async def export(store: ToolKnowledgeStore) -> int:
        selected = run_ids or [stream.removeprefix(RUN_PREFIX) for stream in await store.list_streams(RUN_PREFIX)]
        for run_id in run_ids or ():
            await Run.load(run_id, store)  # before anything is written: a run may not exist
        with open_output(output) as file:
            for run_id in selected:
                loaded = await Run.load_and_detect_interruption(run_id, store)
                line = {"run_id": run_id, "task": loaded.task, "state": loaded.state.value}
                line["messages"] = await load_trajectory(run_id, store)
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
        return len(selected)

    count = run_with_store(context.obj, export)
    if output is not None:
        echo(f"{printing.format_count(count, 'run')} written to {output}.")


@runs_app.command("forget")
def forget_run(context: typer.Context, run_id: RunId) -> None:
    """Delete the history of a run. The records of its calls stay."""

    async def delete(store: ToolKnowledgeStore) -> None:
        async with lock_run(store, run_id):
            await Run.load(run_id, store)
            await store.delete_entries(RUN_PREFIX + run_id)

    run_with_store(context.obj, delete)
    echo(f"The run {run_id} is deleted.")


@failures_app.command("list")
def list_failures(context: typer.Context, tool: OfTool = None, as_json: AsJson = False) -> None:
    """List stored failures with their arguments and what worked instead; the most frequent first."""

    async def read(store: ToolKnowledgeStore) -> list[FailurePattern]:
        history = FailureHistory(store)
        await history.load()
        return history.patterns(tool)

    patterns = run_with_store(context.obj, read)
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
    count = run_with_store(context.obj, lambda store: FailureHistory(store).forget(tool))
    echo(f"{printing.format_count(count, 'failure')} deleted.")


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


@tasks_app.command("from-runs")
def tasks_from_runs(
    context: typer.Context,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Default: standard output.")] = None,
    since: Annotated[str | None, typer.Option("--since", help="Only runs since: 10m, 2h, 7d, or a date.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Also runs without an answer.")] = False,
) -> None:
    """Make tasks from recorded runs: what was asked, with which tools, and how it ended. Equal questions count once."""
    start = parse_since(since)
    states = frozenset(state.value for state in AgentState) if everything else frozenset({"finished"})

    async def write(store: ToolKnowledgeStore) -> int:
        number = 0
        with open_output(output) as file:
            async for task in read_tasks_from_runs(
                store, states=states, since=0.0 if start is None else start.timestamp()
            ):
                file.write(json.dumps(task.to_dict(), ensure_ascii=False) + "\n")
                number += 1
        return number

    number = run_with_store(context.obj, write)
    if output is not None:
        echo(f"{printing.format_count(number, 'task')} written to {output}.")
