"""The HTTP API of money: what was spent by whom, and what is left of the budgets."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from ferrule.server.problems import json_response
from ferrule.server.services import AdminClient, ReadingClient, ServicesOfApp
from ferrule.server.tool_routes import Moment
from ferrule.store.spending import CostGroup, CostSummary, summarize_costs

router = APIRouter(prefix="/v1", tags=["costs"])


@router.get("/costs")
async def list_costs(
    services: ServicesOfApp, client: ReadingClient, by: CostGroup = "tool", since: Moment | None = None
) -> Response:
    """What calls and models' replies cost, by tool, model, run, conversation, principal, tenant or day.

    A client sees its own, or those of its tenant if it may approve.
    """
    visibility, costs = services.visibility(client), services.library.engine.costs
    principals = None if visibility.principals is None else sorted(visibility.principals)
    summaries = await services.library.engine.store.query(
        summarize_costs, by, since, visibility.tenant, principals=principals
    )
    prefix = f"{client.tenant}/" if by == "conversation" and client.tenant else ""
    total: dict[str, Any] = CostSummary.total(summaries.values()).to_dict()
    return json_response(
        {
            "by": by,
            "currency": costs.prices.currency,
            "costs": [{"key": key.removeprefix(prefix), **each.to_dict()} for key, each in summaries.items()],
            "total": total,
        }
    )


@router.get("/budgets")
async def list_budgets(services: ServicesOfApp, client: AdminClient) -> Response:
    """The budgets, and what was spent of each, by scope and period."""
    costs, tenant = services.library.engine.costs, services.visibility(client).tenant
    states = [state for state in await costs.list_spending() if state.budget in costs.budgets]
    if tenant is not None:  # an administrator of one tenant
        states = [
            state
            for state in states
            if (costs.budgets[state.budget].per, state.scope.partition("/")[0])
            in (("tenant", tenant), ("principal", tenant))
        ]
    return json_response(
        {
            "currency": costs.prices.currency,
            "budgets": [
                {**asdict(budget), "spending": [asdict(state) for state in states if state.budget == budget.name]}
                for budget in costs.budgets.values()
            ],
        }
    )
