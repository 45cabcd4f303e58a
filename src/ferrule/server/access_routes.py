"""The HTTP API of access and money: tokens, the policy, who administered the server, credentials, costs and budgets."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Path
from pydantic import ConfigDict, Field, StrictBool
from starlette.requests import Request
from starlette.responses import Response

from ferrule.core.permission import EFFECT_TIERS, LOCAL_USER, EffectTier, Principal
from ferrule.core.spec import Tool, ToolCapability
from ferrule.errors import ToolNotFound
from ferrule.policy.policy import DEFAULT_RULES, Policy, Rule, find_rules_without_tools, matches_principal
from ferrule.server.authentication import Client
from ferrule.server.responses import Problem, json_response
from ferrule.server.services import (
    AdminClient,
    CallingClient,
    Limit,
    Moment,
    ReadingClient,
    RequestBody,
    Services,
    ServicesOfApp,
)
from ferrule.server.tokens import DEFAULT_OVERLAP, LOCAL_AGENT, MAX_OVERLAP, AccessToken, Role
from ferrule.store.spending import CostGroup, CostSummary, summarize_costs
from ferrule.store.statistics import count_calls_by_rule

router = APIRouter(prefix="/v1", tags=["access"])

RULE_COUNT_DAYS: Final = 30
"""How far back the calls are counted that rules have decided about."""
TokenName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,100}$")]


# Tokens


class TokenRequest(RequestBody):
    """What a new token may do."""

    name: TokenName
    roles: Annotated[list[Role], Field(min_length=1)] = ["caller"]
    tools: list[str] | None = None
    max_effect: EffectTier = "destructive"
    tenant: TokenName | Literal[""] = ""
    calls_per_minute: Annotated[float | None, Field(gt=0, le=1e9)] = None
    max_concurrent: Annotated[int | None, Field(gt=0, le=1_000_000)] = None
    expires_in: Annotated[float | None, Field(gt=0, le=1e10)] = None
    """Seconds."""


@router.get("/tokens")
async def list_tokens(services: ServicesOfApp, client: AdminClient) -> Response:
    """List the tokens; their secret texts are not stored."""
    tokens = [token for token in await services.tokens.list_tokens() if _may_manage(client, token)]
    return json_response({"tokens": [token.to_dict() for token in tokens]})


@router.post("/tokens", status_code=201)
async def create_token(request: Request, body: TokenRequest, services: ServicesOfApp, client: AdminClient) -> Response:
    """Create a token. Its secret text is in this response only. From the first one on, every request needs a token."""
    if not client.sees_all_tenants and body.tenant != client.tenant:
        raise Problem(403, f"Tokens of this client belong to the tenant {client.tenant!r}.")
    tokens = await services.tokens.list_tokens()
    remaining = _check_grants(body, client, tokens)
    if remaining is not None and body.expires_in is not None:  # it expires before the one that creates it
        body = body.model_copy(update={"expires_in": min(body.expires_in, remaining - 1)})
    if any(each.name == body.name and each.revoked_at is None for each in tokens):
        raise Problem(409, f"There is already a token {body.name!r}. Revoke it first, or choose another name.")
    token, text = await services.tokens.create(**body.model_dump())
    request.app.state.authenticator.on_token_created()
    await services.audit.write(
        client.principal, "create_token", token.name, roles=sorted(token.roles), tenant=token.tenant
    )
    return json_response({**token.to_dict(), "token": text}, 201)


@router.delete("/tokens/{name}")
async def revoke_token(request: Request, name: str, services: ServicesOfApp, client: AdminClient) -> Response:
    """Revoke a token. Every server refuses it within a few seconds."""
    tokens = [token for token in await services.tokens.list_tokens() if name in (token.name, token.token_id)]
    manageable = [token for token in tokens if _may_manage(client, token) and token.revoked_at is None]
    if not manageable:
        raise Problem(404, f"There is no valid token {name!r}.")
    for token in manageable:
        await services.tokens.revoke(token.token_id)
        request.app.state.authenticator.forget(token.token_id)
        await services.audit.write(client.principal, "revoke_token", token.name, tenant=token.tenant)
    return json_response({"name": name, "revoked": True})


class RotationRequest(RequestBody):
    """How a token gets another secret text."""

    model_config = ConfigDict(strict=True)
    overlap: Annotated[float, Field(ge=0, le=MAX_OVERLAP)] = DEFAULT_OVERLAP
    """Seconds for which the earlier text is valid too."""


@router.post("/tokens/{name}/rotate")
async def rotate_token(
    request: Request, name: str, body: RotationRequest, services: ServicesOfApp, client: AdminClient
) -> Response:
    """Give a token another secret text, which is in this response only. The earlier one stays valid for a while.

    A client gets the text of no token that may do more than the client, lives longer, or belongs to another tenant.
    """
    tokens = await services.tokens.list_tokens()
    manageable = [each for each in tokens if name in (each.name, each.token_id) and _may_manage(client, each)]
    token = next(filter(services.tokens.is_valid, manageable), None)
    if token is None:
        raise Problem(404, f"There is no valid token {name!r}.")
    remaining = None if token.expires_at is None else max(token.expires_at - time.time(), 1e-9)
    grants = {**token.to_dict(), "expires_in": remaining}
    try:
        lifetime = _check_grants(
            TokenRequest.model_construct(**{each: grants[each] for each in TokenRequest.model_fields}), client, tokens
        )
    except Problem:
        raise Problem(403, f"The token {name!r} may do more than this client, which must not get its secret.") from None
    if lifetime is not None and remaining is not None and remaining > lifetime + 1:
        raise Problem(403, f"The token {name!r} lives longer than the token of this client.")
    if client.token is not None and client.token.parent_id == token.token_id:
        raise Problem(403, "A session, or an earlier secret, cannot change the secret of its token: use the token.")
    text = await services.tokens.rotate(token, body.overlap)
    request.app.state.authenticator.forget(token.token_id)
    await services.audit.write(client.principal, "rotate_token", token.name, tenant=token.tenant, overlap=body.overlap)
    return json_response({**token.to_dict(), "token": text, "overlap": body.overlap})


def _check_grants(body: TokenRequest, client: Client, tokens: Sequence[AccessToken]) -> float | None:
    """Raise a problem if the new token could do more than the one that creates it; returns how long that one lives.

    For a session, that is the token with which somebody has opened it.
    """
    creator = client.principal
    if EFFECT_TIERS.index(body.max_effect) > EFFECT_TIERS.index(creator.max_effect):
        raise Problem(403, f"This client may create tokens for {creator.max_effect} calls: set max_effect.")
    if creator.tools is not None and not creator.tools.issuperset(body.tools or ["*"]):
        raise Problem(403, f"This client may create tokens for its own tools: {', '.join(sorted(creator.tools))}.")
    if client.token is None:
        return None
    token = next((each for each in tokens if each.token_id == client.token.root_id), client.token)
    if token.expires_at is not None and body.expires_in is None:
        raise Problem(403, "The token of this client expires: set expires_in.")
    limits = {
        "calls_per_minute": (body.calls_per_minute, token.calls_per_minute),
        "max_concurrent": (body.max_concurrent, token.max_concurrent),
    }
    for name, (value, limit) in limits.items():
        if limit is not None and (value is None or value > limit):
            raise Problem(403, f"The token of this client has a limit itself: set {name} to at most {limit:g}.")
    return None if token.expires_at is None else token.expires_at - time.time()


def _may_manage(client: Client, token: AccessToken) -> bool:
    return client.sees_all_tenants or token.tenant == client.tenant


# The policy


@router.get("/policy")
async def show_policy(services: ServicesOfApp, client: AdminClient) -> Response:
    """Return the rules in their order, each with how many calls it has decided about.

    An administrator of a tenant sees those about tools that it may use, and none about another tenant.
    """
    policy = services.policy or services.engine.policy
    since = datetime.now(UTC) - timedelta(days=RULE_COUNT_DAYS)
    tenant = None if client.sees_all_tenants else client.tenant
    counts = await services.store.query(count_calls_by_rule, since, tenant)
    default, rules = None, list[tuple[Rule, bool]]()
    if isinstance(policy, Policy):
        default, rules = policy.default, [(rule, False) for rule in policy.rules]
        rules += [(rule, True) for rule in DEFAULT_RULES if default is None]
    snapshot = services.engine.registry.snapshot()
    unused = find_rules_without_tools(policy, snapshot) if client.sees_all_tenants else []
    if not client.sees_all_tenants:
        permissions = services.permissions(client)
        usable = [(tool, each) for tool in snapshot for each in permissions.permitted_spec(tool).capabilities]
        rules = [each for each in rules if _concerns(each[0], client, usable)]
    return json_response(
        {
            "kind": type(policy).__name__,
            "default": default,
            "days": RULE_COUNT_DAYS,
            "rules": [
                {
                    **asdict(rule),
                    "text": str(rule),
                    "is_built_in": is_built_in,
                    "calls": counts.get(str(rule), (0, None))[0],
                    "last_called": counts.get(str(rule), (0, None))[1],
                }
                for rule, is_built_in in rules
            ],
            "warnings": unused,
        }
    )


def _concerns(rule: Rule, client: Client, usable: Sequence[tuple[Tool, ToolCapability]]) -> bool:
    """Return whether an administrator of a tenant may see a rule."""
    is_of_another = rule.principal.startswith("tenant:") and not matches_principal(client.principal, rule.principal)
    return not is_of_another and any(rule.covers(*each) for each in usable)


class PolicyTest(RequestBody):
    """A call that is not made."""

    token: str | None = None
    """The name of the token; none: the user of this machine."""
    chosen_by_model: StrictBool = False
    """Whether a model chooses the call, for the holder of the token."""
    tool: str
    action: str | None = None
    arguments: dict[str, Any] = {}


@router.post("/policy/test")
async def predict_decision(body: PolicyTest, services: ServicesOfApp, client: AdminClient) -> Response:
    """Return what would happen if a token made a call: allow, ask or deny, by which rule, and what is wrong with it."""
    principal = await _find_principal(body, services, client)
    tool, capability = _find_action(body, services, client)
    permissions = services.engine.permissions(principal, services.policy)
    checked = services.engine.check(tool, body.arguments, capability.name)
    # As the engine decides: about the arguments as they are written, and as the tool gets them.
    variants = [body.arguments, *([checked.validated_params] if checked.is_valid else ())]
    decisions = [permissions.decide(tool, capability, arguments) for arguments in variants]
    decision = next((each for each in decisions if each.verdict != "allow"), decisions[-1])
    return json_response(
        {
            **asdict(decision),
            "principal": principal.label,
            "tool_id": tool.id,
            "action": capability.name,
            "is_listed": permissions.may_call(tool, capability),
            "problems": [str(error) for error in checked.errors],
            "needs": (await services.library.get_unavailable_tools()).get(tool.id),
        }
    )


async def _find_principal(body: PolicyTest, services: Services, client: Client) -> Principal:
    if body.token is None:
        if not client.sees_all_tenants:
            raise Problem(403, f"Name a token of the tenant {client.tenant!r}.")
        return LOCAL_AGENT if body.chosen_by_model else LOCAL_USER
    tokens = [token for token in await services.tokens.list_tokens() if body.token in (token.name, token.token_id)]
    manageable = [token for token in tokens if _may_manage(client, token) and services.tokens.is_valid(token)]
    if not manageable:
        raise Problem(404, f"There is no valid token {body.token!r}.")
    return manageable[0].agent_principal if body.chosen_by_model else manageable[0].principal


def _find_action(body: PolicyTest, services: Services, client: Client) -> tuple[Tool, ToolCapability]:
    """Find an action. An administrator of a tenant does not learn about tools that it may not use itself."""
    snapshot = services.engine.registry.snapshot()
    try:
        tool, capability = snapshot.find(body.tool, body.action)
    except ToolNotFound as error:  # which suggests tools with similar names
        raise Problem(404, str(error) if client.sees_all_tenants else f"There is no tool {body.tool!r} here.") from None
    if not client.sees_all_tenants and not services.permissions(client).may_call(tool, capability):
        raise Problem(404, f"There is no tool {body.tool!r} here.")
    return tool, capability


# Who administered the server


@router.get("/audit")
async def list_audit(services: ServicesOfApp, client: AdminClient, limit: Limit = 200) -> Response:
    """Return what administrators have done, the latest first. Calls and approvals have records of their own."""
    entries = await services.audit.read(tenant=None if client.sees_all_tenants else client.tenant, limit=limit)
    return json_response({"entries": entries})


credentials_router = APIRouter(prefix="/v1", tags=["credentials"])

CredentialName = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]


class CredentialRequest(RequestBody):
    """The secret text, which is never given back."""

    model_config = ConfigDict(hide_input_in_errors=True)
    value: Annotated[str, Field(min_length=1, max_length=65_536, pattern=r"^[^\x00-\x1f\x7f]+$")]


@credentials_router.get("/credentials")
async def list_credentials(services: ServicesOfApp, client: CallingClient) -> Response:
    """List the names of the client's credentials."""
    entries = await services.store.credentials.list_entries(client.principal.account)
    own = [{"name": each.name, "updated_at": each.updated_at} for each in entries if ":" not in each.name]
    return json_response({"credentials": own})


@credentials_router.put("/credentials/{name}")
async def store_credential(
    name: CredentialName, body: CredentialRequest, services: ServicesOfApp, client: CallingClient
) -> Response:
    """Store a credential, in place of an earlier one. It is encrypted; every server uses it within seconds."""
    await services.store.credentials.set(client.principal.account, name, body.value)
    return json_response({"name": name, "stored": True})


@credentials_router.delete("/credentials/{name}")
async def delete_credential(name: CredentialName, services: ServicesOfApp, client: CallingClient) -> Response:
    """Delete a credential. No server uses it after a few seconds."""
    if not await services.store.credentials.delete(client.principal.account, name):
        raise Problem(404, f"There is no credential {name!r}.")
    return json_response({"name": name, "deleted": True})


costs_router = APIRouter(prefix="/v1", tags=["costs"])


@costs_router.get("/costs")
async def list_costs(
    services: ServicesOfApp, client: ReadingClient, by: CostGroup = "tool", since: Moment | None = None
) -> Response:
    """Return what calls and models' replies cost, by tool, model, run, conversation, principal, tenant or day.

    A client sees its own, or those of its tenant if it may approve.
    """
    visibility, costs = services.visibility(client), services.engine.costs
    principals = None if visibility.principals is None else sorted(visibility.principals)
    summaries = await services.store.query(summarize_costs, by, since, visibility.tenant, principals=principals)
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


@costs_router.get("/budgets")
async def list_budgets(services: ServicesOfApp, client: AdminClient) -> Response:
    """Return the budgets, and what was spent of each, by scope and period."""
    costs, tenant = services.engine.costs, services.visibility(client).tenant
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
