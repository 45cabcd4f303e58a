"""What was spent: of each budget, and by whom on which tools and models.

`budget_spending` has one row per budget, scope (a tenant, a principal, a run or all) and period. One statement both
checks and changes it, so a budget holds for all processes of the store. The costs of calls are in their records. Those
of models' replies are entries: `usage:DAY` has one per reply, as safe as a record.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeAlias, get_args

from ferrule.store.database import StoreDatabase
from ferrule.store.escapes import escape_text, unescape_text
from ferrule.store.tables import BINDING_COLUMNS, get_table, sa

CostGroup: TypeAlias = Literal["tool", "model", "run", "conversation", "principal", "tenant", "day"]
COST_GROUPS: Final = get_args(CostGroup)
USAGE_PREFIX: Final = "usage:"
ROUNDING: Final = 1e-9
"""Ten payments of 0.1 are a budget of 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """A budget that pays for something, in one scope and period."""

    budget: str
    scope: str
    period: str
    limit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetState:
    """What was spent of a budget in one scope and period."""

    budget: str
    scope: str
    period: str
    spent: float
    extension: float
    """What people have approved beyond the budget's amount."""
    changed_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReplyRecord:
    """What one reply of a model cost, and who asked for it."""

    model: str
    run_id: str
    principal: str
    tenant: str
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost: float | None
    """None if the model has no price."""
    seconds: float
    is_estimated: bool = False
    """There was no complete reply that could say what it used: it was cancelled, or took too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostSummary:
    """What was spent by one tool, model, run, conversation, principal or tenant, or on one day."""

    calls: int = 0
    """Calls of paid tools."""
    tool_cost: float = 0.0
    requests: int = 0
    """Replies of models."""
    input_tokens: int = 0
    output_tokens: int = 0
    model_cost: float = 0.0
    unpriced_requests: int = 0
    """Replies of models that have no price: what they cost is not known."""

    @property
    def cost(self) -> float:
        return self.tool_cost + self.model_cost

    @classmethod
    def total(cls, summaries: Iterable[CostSummary]) -> CostSummary:
        rows = [asdict(summary) for summary in summaries]
        return cls(**{name: sum(row[name] for row in rows) for name in rows[0]}) if rows else cls()

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "cost": self.cost}


class _DoesNotFit(Exception):
    """Ends the transaction in which an earlier budget has paid already."""


def spend(
    database: StoreDatabase, charges: Sequence[Charge], amount: float, may_exceed: Collection[str] = ()
) -> Charge | None:
    """Take an amount from all budgets, or from none: then returns the one that has not so much left.

    The budgets named in `may_exceed` pay in any case.
    """
    statement = sa.text(
        "INSERT INTO budget_spending (budget, scope, period, spent, extension, changed_at) "
        "SELECT :budget, :scope, :period, CAST(:amount AS DOUBLE PRECISION), 0, CAST(:now AS DOUBLE PRECISION) "
        "WHERE CAST(:amount AS DOUBLE PRECISION) <= CAST(:available AS DOUBLE PRECISION) "
        "OR EXISTS (SELECT 1 FROM budget_spending WHERE budget = :budget AND scope = :scope AND period = :period) "
        "ON CONFLICT (budget, scope, period) DO UPDATE SET spent = budget_spending.spent + excluded.spent, "
        "changed_at = excluded.changed_at "
        "WHERE budget_spending.spent + excluded.spent <= "
        "budget_spending.extension + CAST(:available AS DOUBLE PRECISION)"
    )
    failed: Charge | None = None
    try:
        with database.write() as connection:
            for charge in sorted(charges, key=lambda each: (each.budget, each.scope)):  # one order: no deadlocks
                available = 1e300 if charge.budget in may_exceed else charge.limit + ROUNDING
                values = {**_key_of(charge), "amount": amount, "available": available, "now": time.time()}
                if connection.execute(statement, values).rowcount != 1:
                    failed = charge
                    raise _DoesNotFit
    except _DoesNotFit:
        return failed
    return None


def correct_spending(database: StoreDatabase, charges: Sequence[Charge], difference: float) -> None:
    """Add what something cost beyond what was taken for it, or give back the rest."""
    table = get_table("budget_spending")
    with database.write() as connection:
        for charge in sorted(charges, key=lambda each: (each.budget, each.scope)):
            values = {"spent": table.c.spent + difference, "changed_at": time.time()}
            connection.execute(table.update().where(*_is_row_of(charge)).values(values))


def extend_budget(
    database: StoreDatabase, approval_id: str, binding: Mapping[str, str], charge: Charge, amount: float, now: float
) -> bool:
    """Use an approval to extend a budget, both or neither; False if it cannot be used, or not for this."""
    approvals, table = get_table("approvals"), get_table("budget_spending")
    conditions = [approvals.c[name] == binding[name] for name in BINDING_COLUMNS]
    conditions += [approvals.c.state == "approved", approvals.c.approval_id == approval_id]
    conditions.append(approvals.c.expires_at > now)
    used = {"state": "used", "used_by": f"budget:{charge.budget}"[:200], "used_at": now}
    with database.write() as connection:
        if connection.execute(approvals.update().where(*conditions).values(used)).rowcount != 1:
            return False
        values = {"extension": table.c.extension + amount, "changed_at": now}
        if connection.execute(table.update().where(*_is_row_of(charge)).values(values)).rowcount != 1:
            new = {**_key_of(charge), "spent": 0.0, "extension": amount, "changed_at": now}
            connection.execute(table.insert().values(new))
        return True


def list_spending(database: StoreDatabase) -> list[BudgetState]:
    """Return what was spent of all budgets, the latest first."""
    table = get_table("budget_spending")
    rows = (row._asdict() for row in database.find(table.select().order_by(table.c.changed_at.desc())))
    texts = ("budget", "scope")
    return [BudgetState(**row | {name: unescape_text(row[name]) for name in texts}) for row in rows]


def _key_of(charge: Charge) -> dict[str, str]:
    return {name: escape_text(getattr(charge, name)) for name in ("budget", "scope", "period")}


def _is_row_of(charge: Charge) -> list[Any]:
    return [get_table("budget_spending").c[name] == value for name, value in _key_of(charge).items()]


# Costs by tool, model, run, conversation, principal, tenant or day


def usage_stream(at: float) -> str:
    """Return the name of the stream with the replies of a day."""
    return USAGE_PREFIX + datetime.fromtimestamp(at, UTC).date().isoformat()


def summarize_costs(
    database: StoreDatabase,
    by: CostGroup,
    since: datetime | None = None,
    tenant: str | None = None,
    *,
    keys: Sequence[str] | None = None,
    principals: Sequence[str] | None = None,
) -> dict[str, CostSummary]:
    """Return what one tenant (an empty text: no tenant) or all have spent, the most expensive first.

    `keys` are the only runs, conversations … that are returned, `principals` the only ones whose costs count.
    """
    with database.read() as connection:
        values: dict[str, Any] = {"since": 0.0 if since is None else since.timestamp(), "tenant": tenant}
        values |= {"principals": None if principals is None else list(map(escape_text, principals))}
        calls = {} if by == "model" else _sum_costs(connection, _CALLS, by, values)
        replies = {} if by == "tool" else _sum_costs(connection, _REPLIES, by, values)
    summaries = {key: CostSummary(**{**calls.get(key, {}), **replies.get(key, {})}) for key in {**calls, **replies}}
    if keys is not None:
        summaries = {key: summaries[key] for key in keys if key in summaries}
    return dict(sorted(summaries.items(), key=lambda item: (-item[1].cost, item[0])))


_CALLS: Final = {
    "rows": "tool_calls WHERE cost > 0",
    "sums": "COUNT(*) AS calls, SUM(cost) AS tool_cost",
    "name": "tool_name",
    "run": "tool_calls.conversation_id",
    "principal": "COALESCE(principal, 'user:local')",
    "tenant": "COALESCE(tenant, '')",
    "time": "started_at",
}
_REPLIES: Final = {
    "rows": "entries AS reply WHERE substr(reply.stream, 1, 6) = 'usage:'",
    "sums": "COUNT(*) AS requests, SUM(CAST(reply.value->>'input_tokens' AS BIGINT)) AS input_tokens, "
    "SUM(CAST(reply.value->>'output_tokens' AS BIGINT)) AS output_tokens, "
    "SUM(CAST(reply.value->>'cost' AS DOUBLE PRECISION)) AS model_cost, "
    "SUM(CASE WHEN reply.value->>'cost' IS NULL THEN 1 ELSE 0 END) AS unpriced_requests",
    "name": "reply.value->>'model'",
    "run": "(reply.value->>'run_id')",
    "principal": "reply.value->>'principal'",
    "tenant": "reply.value->>'tenant'",
    "time": "reply.written_at",
}
"""What costs something: the rows, the sums of a group, and the columns, in SQL."""


def _sum_costs(
    connection: sa.Connection, costs: Mapping[str, str], by: CostGroup, values: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    # A cast rounds in PostgreSQL, and SQLite may have no `floor`.
    day = "floor({time} / 86400)" if connection.dialect.name == "postgresql" else "CAST({time} / 86400 AS INTEGER)"
    conversation = (
        "(SELECT binding.value->>'conversation_id' FROM entries AS binding "
        "WHERE binding.stream = 'asked:' || {run} AND binding.key = 'begin')"
    )
    keys = {"tool": "{name}", "model": "{name}", "run": "{run}", "principal": "{principal}", "tenant": "{tenant}"}
    key = {**keys, "conversation": conversation, "day": day}[by]
    condition = "" if values["tenant"] is None else " AND {tenant} = :tenant"
    condition += "" if values["principals"] is None else " AND {principal} IN :principals"
    query = f"SELECT {key} AS group_key, {{sums}} FROM {{rows}} AND {{time}} >= :since{condition} GROUP BY 1"
    used = {name: value for name, value in values.items() if f":{name}" in query}
    used = {name: escape_text(value) if isinstance(value, str) else value for name, value in used.items()}
    expanding: list[Any] = [sa.bindparam(name, expanding=True) for name in used if name == "principals"]
    sums: dict[str, dict[str, Any]] = {}
    for row in connection.execute(sa.text(query.format(**costs)).bindparams(*expanding), used).mappings():
        if (group := row["group_key"]) is not None:
            numbers = {name: value or 0 for name, value in row.items() if name != "group_key"}
            day_or_name = (
                datetime.fromtimestamp(int(group) * 86_400, UTC).date().isoformat()
                if by == "day"
                else unescape_text(str(group))
            )
            sums[day_or_name] = {
                name: float(value) if name.endswith("_cost") else int(value) for name, value in numbers.items()
            }
    return sums
