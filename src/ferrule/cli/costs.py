"""`ferrule costs` and `ferrule budgets`: what was spent by whom, and what is left."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ferrule.cli.options import AsJson


def show_costs(
    context: typer.Context,
    by: Annotated[
        str,
        typer.Option("--by", help="tool, model, run, conversation, principal (a token, for example), tenant or day."),
    ] = "tool",
    since: Annotated[str | None, typer.Option("--since", help="Only since: 10m, 2h, 7d, or a date.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Show what calls of paid tools and replies of models cost. Prices are those of the time of the call."""
    from ferrule.cli.printing import print_json, print_table
    from ferrule.cli.session import run
    from ferrule.cli.terminal import echo
    from ferrule.cli.times import parse_since
    from ferrule.core.names import did_you_mean
    from ferrule.errors import SetupError
    from ferrule.store.spending import COST_GROUPS, CostSummary, summarize_costs

    async def command() -> dict[str, CostSummary]:
        if by not in COST_GROUPS:
            raise SetupError(f"--by takes {', '.join(COST_GROUPS)}, not {by!r}.{did_you_mean(by, COST_GROUPS)}")
        group: Any = by
        async with context.obj.store() as store:
            summaries: dict[str, CostSummary] = await store.query(summarize_costs, group, parse_since(since))
            return summaries

    summaries = run(command())
    total, currency = CostSummary.total(summaries.values()), context.obj.config().prices.currency
    if as_json:
        costs = {key: summary.to_dict() for key, summary in summaries.items()}
        print_json({"by": by, "currency": currency, "costs": costs, "total": total.to_dict()})
        return
    print_table(
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
    from dataclasses import asdict

    from ferrule.cli.printing import print_json, print_table
    from ferrule.cli.session import run
    from ferrule.store.spending import BudgetState, list_spending

    async def command() -> list[BudgetState]:
        async with context.obj.store() as store:
            states: list[BudgetState] = await store.query(list_spending)
            return states

    budgets = {budget.name: budget for budget in context.obj.config().budgets}
    states = [state for state in run(command()) if state.budget in budgets]
    if as_json:
        print_json(
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
    print_table(
        ("budget", "per", "of", "period", "spent", "amount", "then"),
        [
            (name, per, scope, period, f"{spent:.6g}", f"{budgets[name].amount + more:g}", budgets[name].then)
            for name, per, scope, period, spent, more in (*rows, *unused)
        ],
        empty="There are no budgets. Write [[budgets]] into ferrule.toml.",
        cut=(2,),
    )
