"""What was recorded: `ferrule calls`, `stats`, `costs`, `budgets`, `artifacts` and `store`."""

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

from ferrule.cli import printing
from ferrule.cli.client import client_of
from ferrule.cli.session import AsJson, MaxCount, Output, Session, Since, fail, parse_since, run_with_store
from ferrule.cli.terminal import echo
from ferrule.core.names import did_you_mean
from ferrule.store import CallStatistics, ToolKnowledgeStore
from ferrule.store.backup import back_up_store, check_store, restore_store
from ferrule.store.location import StoreLocation
from ferrule.store.spending import COST_GROUPS, CostSummary, list_spending, summarize_costs

OfTool = Annotated[str | None, typer.Option("--tool", help="Only calls of this tool.")]
Folder = Annotated[Path, typer.Argument(help="The folder of the backup.")]

NO_CALLS = 'No calls yet. Make one: ferrule call calculator expression="2 + 2"'

artifacts_app = typer.Typer(help="Read results that are too long for a model.", no_args_is_help=True)
store_app = typer.Typer(help="Copy and check the store; delete what is old.", no_args_is_help=True)


def calls(
    context: typer.Context,
    tool: OfTool = None,
    conversation: Annotated[str | None, typer.Option("--conversation", help="Only calls of this conversation.")] = None,
    principal: Annotated[
        str | None, typer.Option("--principal", help="Only calls of this caller, such as token:ci.")
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only calls that failed.")] = False,
    since: Since = None,
    limit: MaxCount = 20,
    as_json: AsJson = False,
) -> None:
    """Show the latest calls."""
    filters = {"tool_name": tool, "conversation_id": conversation, "principal": principal, "since": parse_since(since)}
    more = {"is_success": False} if failed else {}
    listed = client_of(context, local_only=("failed",)).list_calls(limit, **filters, **more)
    empty = "No recorded call failed." if failed else NO_CALLS
    if any(value is not None for value in filters.values()):
        empty = "No recorded call matches these options."
    columns: printing.Columns = {
        "when": lambda call: f"{datetime.fromisoformat(call['created_at']).astimezone():%Y-%m-%d %H:%M:%S}",
        "tool": lambda call: " ".join(dict.fromkeys(filter(None, (call["tool_name"], call["action"])))),
        "status": lambda call: (
            call["status"]
            + (f" ({call['error_type']})" if call["error_type"] not in (None, "", call["status"]) else "")
        ),
        "took": lambda call: printing.format_duration(call["execution_time"]),
        "caller": lambda call: call["caller_id"] or call["caller_type"],
        "result": lambda call: printing.first_line(call["error"] or json.dumps(call["result"], ensure_ascii=False)),
    }
    printing.print_list(listed, columns, as_json=as_json, empty=empty, cut=(5, 1), optional=(4, 3))


def stats(
    context: typer.Context,
    tool: OfTool = None,
    since: Since = None,
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
        return
    if not statistics.total:
        print(NO_CALLS)
        return
    print(
        f"{printing.format_count(statistics.total, 'call')}, {statistics.success_rate:.1f} % successful, "
        f"{statistics.failed:,} failed, {statistics.cancelled:,} cancelled"
    )
    columns: printing.Columns = {
        "tool": lambda tool: tool[0],
        "calls": lambda tool: f"{tool[1].calls:,}",
        "failed": lambda tool: f"{tool[1].failures:,}",
        "p50": lambda tool: printing.format_duration(tool[1].p50),
        "p95": lambda tool: printing.format_duration(tool[1].p95),
        "p99": lambda tool: printing.format_duration(tool[1].p99),
        **({"cost": lambda tool: f"{costs.get(tool[0], 0.0):.4g}"} if costs else {}),
        "last error": lambda tool: printing.first_line(tool[1].last_error or ""),
    }
    printing.print_list([*statistics.tools.items()], columns, as_json=False, empty="", cut=(len(columns) - 1,))


@artifacts_app.command("get")
def get_artifact(
    context: typer.Context,
    artifact_id: Annotated[str, typer.Argument(help="The id, as the note at the end of a shortened result names it.")],
    output: Output = None,
) -> None:
    """Print a long result completely, as it is stored; text is not escaped."""
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
    lines = [f"{kind.replace('_', ' ')}: {number}" for kind, number in asdict(report).items()]
    lines += ["Nothing was deleted: this was a dry run."] if dry_run else []
    printing.print_outcome(asdict(report), *lines, as_json=as_json)


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
    printing.print_outcome(names, message.format(**names), as_json=as_json)


@store_app.command()
def check(context: typer.Context, as_json: AsJson = False) -> None:
    """Check whether the file of the store is intact; exits with 1 if it is not."""
    location = context.obj.store().location
    problems = check_store(location)
    lines = problems or [f"{location.display_name} is intact."]
    printing.print_outcome({"store": location.display_name, "problems": problems}, *lines, as_json=as_json)
    if problems:
        raise typer.Exit(1)


def show_costs(
    context: typer.Context,
    by: Annotated[
        str,
        typer.Option("--by", help="tool, model, run, conversation, principal (a token, for example), tenant or day."),
    ] = "tool",
    since: Since = None,
    limit: MaxCount = 50,
    as_json: AsJson = False,
) -> None:
    """Show what calls of paid tools and replies of models cost. Prices are of the time of the call."""
    if by not in COST_GROUPS:
        fail(f"--by takes {', '.join(COST_GROUPS)}, not {by!r}.{did_you_mean(by, COST_GROUPS)}")
    group: Any = by
    summaries = run_with_store(context.obj, lambda store: store.query(summarize_costs, group, parse_since(since)))
    total, currency = CostSummary.total(summaries.values()), context.obj.config().prices.currency
    if as_json:
        costs = {key: summary.to_dict() for key, summary in summaries.items()}
        printing.print_json({"by": by, "currency": currency, "costs": costs, "total": total.to_dict()})
        return
    columns: printing.Columns = {
        by: lambda row: row[0] or "(none)",
        "cost": lambda row: f"{row[1].cost:.6g}",
        "paid calls": lambda row: f"{row[1].calls:,}",
        "requests": lambda row: f"{row[1].requests:,}",
        "tokens in": lambda row: f"{row[1].input_tokens:,}",
        "tokens out": lambda row: f"{row[1].output_tokens:,}",
    }
    empty = "No costs are recorded."
    if by == "tool":
        empty = "No call of a tool had a price. Replies of models: ferrule costs --by model"
    printing.print_list(list(summaries.items())[:limit], columns, as_json=False, empty=empty, cut=(0,))
    if summaries:
        echo(f"total: {total.cost:.6g} {currency}")
    if total.unpriced_requests:
        echo(
            f"{total.unpriced_requests:,} replies are of models without a price: see [prices.models] in docs/costs.md."
        )


def show_budgets(context: typer.Context, as_json: AsJson = False) -> None:
    """Show the budgets of ferrule.toml, and what was spent of each."""
    spending = run_with_store(context.obj, lambda store: store.query(list_spending))
    budgets = [
        {**asdict(budget), "spending": [asdict(state) for state in spending if state.budget == budget.name]}
        for budget in context.obj.config().budgets
    ]
    if as_json:
        printing.print_json(budgets)
        return
    unused = {"scope": "", "period": "", "spent": 0.0, "extension": 0.0}
    columns: printing.Columns = {
        "budget": "name",
        "per": "per",
        "of": "scope",
        "period": "period",
        "spent": lambda each: f"{each['spent']:.6g}",
        "amount": lambda each: f"{each['amount'] + each['extension']:g}",
        "then": "then",
    }
    rows = [{**budget, **state} for budget in budgets for state in budget["spending"] or [unused]]
    empty = "There are no budgets. Write [[budgets]] into ferrule.toml."
    printing.print_list(rows, columns, as_json=False, empty=empty, cut=(2,))
