"""The commands `ferrule approvals list|show|approve|deny`, `ferrule policy explain` and `ferrule simulate`."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from ferrule.cli import printing
from ferrule.cli.client import client_of
from ferrule.cli.session import (
    EXIT_CODES,
    ArgumentPairs,
    AsJson,
    MaxCount,
    Session,
    ToolName,
    fail,
    parse_arguments,
    parse_since,
    run,
)
from ferrule.cli.terminal import indent_lines, print_error, show_control_characters
from ferrule.core.content import as_text
from ferrule.core.permission import Decision, Principal, PrincipalKind
from ferrule.errors import APPROVAL_REQUIRED, PERMISSION_DENIED, CallError, SetupError
from ferrule.library.library import UnifiedToolLibrary
from ferrule.policy.approvals import Approval, ApprovalRequest, ApprovalState, explain_state
from ferrule.policy.policy import find_rules_without_tools
from ferrule.policy.provenance import ProvenanceRules
from ferrule.simulation import SimulationResult, SimulationRules, simulate

approvals_app = typer.Typer(help="See and decide what waits for your approval.", no_args_is_help=True)
policy_app = typer.Typer(help="See which calls the policy allows.", no_args_is_help=True)

ApprovalId = Annotated[str, typer.Argument(help="The id of the request; its beginning is enough.")]
Reason = Annotated[str, typer.Option("--reason", "-r", help="Why; the model is told the reason for a refusal.")]


@approvals_app.command("list")
def list_approvals(
    context: typer.Context,
    state: Annotated[
        str, typer.Option("--state", help="pending, approved, refused, used, expired, or all.")
    ] = "pending",
    limit: MaxCount = 100,
    as_json: AsJson = False,
) -> None:
    """List the calls that wait for your approval."""
    if state != "all" and state not in get_args(ApprovalState):
        fail(f"There is no state {state!r}. Write one of: {', '.join(get_args(ApprovalState))}, all.")
    selected: Any = None if state == "all" else state
    requests, count = client_of(context).list_approvals(selected, limit)
    if count > len(requests):
        print_error(f"ferrule: {count - len(requests):,} more are not shown. Show them with: --limit {count}")
    columns: printing.Columns = {
        "approval": lambda request: request.approval_id,
        "since": lambda request: f"{datetime.fromtimestamp(request.created_at):%Y-%m-%d %H:%M}",
        "state": lambda request: request.state,
        "who": lambda request: request.principal,
        "call": _call_name,
        "arguments": lambda request: as_text(request.arguments),
    }
    empty = "Nothing waits for your approval." if state == "pending" else "There are no such requests."
    printing.print_list(requests, columns, as_json=as_json, empty=empty, describe=_describe_request, cut=(5, 3))


@approvals_app.command("show")
def show_approval(context: typer.Context, approval_id: ApprovalId, as_json: AsJson = False) -> None:
    """Show a request: who wants to call what, why it asks, and who decided what."""
    _print_request(client_of(context).find_approval(approval_id), as_json=as_json)


@approvals_app.command("approve")
def approve(
    context: typer.Context,
    approval_id: ApprovalId,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Arguments to change; KEY:=JSON if not text.")
    ] = None,
    reason: Reason = "",
    as_json: AsJson = False,
) -> None:
    """Allow a call, as it is or with other arguments. It is made when its run continues or its caller repeats it."""
    _decide_request(context, approval_id, reason, parse_arguments(arguments), allowed=True, as_json=as_json)


@approvals_app.command("deny")
def deny(context: typer.Context, approval_id: ApprovalId, reason: Reason = "", as_json: AsJson = False) -> None:
    """Refuse a call, or take back an approval that was not used yet."""
    _decide_request(context, approval_id, reason, {}, allowed=False, as_json=as_json)


def _decide_request(
    context: typer.Context, approval_id: str, reason: str, edits: dict[str, Any], *, allowed: bool, as_json: bool
) -> None:
    """Record a decision, and print what follows; `edits` replace arguments of the request."""
    client = client_of(context)
    request = client.find_approval(approval_id)
    arguments = {**request.arguments, **edits} if edits else None
    decision = Approval(allowed=allowed, arguments=arguments, reason=reason)
    _print_request(client.decide(request.approval_id, decision), as_json=as_json)


@policy_app.command("explain")
def explain_policy(
    context: typer.Context,
    name: ToolName,
    arguments: ArgumentPairs = None,
    kind: Annotated[str, typer.Option("--as", help="Who calls it: agent, user, client or token.")] = "agent",
    caller: Annotated[str, typer.Option("--name", help="The caller's name, for rules that name it.")] = "",
    roles: Annotated[list[str] | None, typer.Option("--role", help="A role of the caller; may be repeated.")] = None,
    tenant: Annotated[str, typer.Option("--tenant", help="The caller's tenant.")] = "",
    as_json: AsJson = False,
) -> None:
    """Say whether a call is allowed, needs approval or is denied, and which rule decides."""
    if kind not in get_args(PrincipalKind):
        fail(f"--as takes {', '.join(get_args(PrincipalKind))}, not {kind!r}.")
    principal = Principal(
        kind=kind,  # type: ignore[arg-type]
        name=caller or "local",
        roles=frozenset(roles or ()),
        tenant=tenant,
    )
    decision, sentence = run(_decide(context.obj, name, parse_arguments(arguments) or None, principal))
    lines = [f"{decision.verdict}: a call of {name} by {principal.label}"]
    lines.append(f"rule: {decision.rule or 'none matches, so the default decides'}")
    if decision.reason:
        lines.append(f"why: {indent_lines(decision.reason)}")
    if sentence:
        lines.append(sentence)
    if decision.depends_on_arguments and not arguments:
        lines.append("It depends on the arguments: add them to the command to see what applies to one call.")
    described = {"tool": name, "principal": principal.label, **asdict(decision)}
    printing.print_outcome(described, *lines, as_json=as_json)
    if decision.verdict != "allow":  # so that scripts can test it
        raise typer.Exit(EXIT_CODES[PERMISSION_DENIED if decision.verdict == "deny" else APPROVAL_REQUIRED])


async def _decide(
    session: Session, name: str, arguments: dict[str, Any] | None, principal: Principal
) -> tuple[Decision, str]:
    """Return the decision, and a sentence about what a run would be asked about besides."""
    engine = session.engine(tool_name=name)
    async with UnifiedToolLibrary(engine=engine):
        try:
            tool, capability = await engine.discover_action(name)
        except CallError as error:
            raise SetupError(str(error)) from None
        if arguments is not None:
            checked = engine.check(tool, arguments, capability.name)
            if not checked.is_valid:
                problems = " ".join(map(str, checked.errors))
                raise SetupError(f"No rule decides, because the arguments of {name} are not valid: {problems}")
            arguments = checked.validated_params
        for warning in find_rules_without_tools(engine.policy, engine.registry):
            print_error(f"ferrule: {warning} Compare its names with: ferrule tools list")
        decision = engine.permissions(principal).decide(tool, capability, arguments)
        is_asked = decision.verdict == "allow" and not decision.rule and principal.kind == "agent"
        rules = ProvenanceRules.of(engine.policy)
        return decision, rules.explain(tool, capability) if is_asked else ""


def _describe_request(request: ApprovalRequest) -> dict[str, Any]:
    times = {name: printing.format_time(getattr(request, name)) for name in ("created_at", "expires_at", "decided_at")}
    return {**request.to_dict(), **times}


def _call_name(request: ApprovalRequest) -> str:
    return request.tool_id if request.action in (None, "", request.tool_id) else f"{request.tool_id}__{request.action}"


def _print_request(request: ApprovalRequest, *, as_json: bool) -> None:
    lines = [f"{_call_name(request)} {as_text(request.arguments)}"]
    if request.edited_arguments is not None:
        lines.append(f"with other arguments: {as_text(request.edited_arguments)}")
    is_in_run = bool(request.run_id) and not request.is_of_client
    lines.append(f"wanted by {request.principal}" + (f" in the run {request.run_id}" if is_in_run else ""))
    lines.append(f"why it asks: {request.reason}")
    lines += request.describe_origins()
    lines.append(f"state: {explain_state(request)}")
    if request.state == "pending":
        lines.append(f"Decide with: ferrule approvals approve {request.approval_id}   (or deny)")
    elif request.state == "approved" and is_in_run:
        lines.append(f"A server continues the run automatically. Without one: ferrule runs resume {request.run_id}")
    elif request.state == "approved" and request.is_of_client:
        lines.append(f"It is made when {request.principal} makes the same call again.")
    elif request.state == "approved":
        lines.append(f"Make the call with: ferrule call --approval {request.approval_id} {_call_name(request)} …")
    # What a model or tool wrote may look like another line, also where the output is piped.
    lines = [show_control_characters(indent_lines(line)) for line in lines]
    printing.print_outcome(_describe_request(request), *lines, as_json=as_json)


def simulate_history(
    context: typer.Context,
    policy: Annotated[
        Path | None,
        typer.Option("--policy", help="A file like ferrule.toml with the policy to try."),
    ] = None,
    since: Annotated[str | None, typer.Option("--since", help="Only calls since: 10m, 2h, 7d, or a date.")] = "7d",
    memory: Annotated[bool | None, typer.Option("--memory/--no-memory", help="Prevent repeated failures.")] = None,
    as_json: AsJson = False,
) -> None:
    """Replay recorded calls under another policy, without calling any tool: what would have happened?"""

    async def command() -> SimulationResult:
        if policy is None and memory is None:
            raise SetupError("Name what should be different: --policy FILE, --memory or --no-memory.")
        baseline = SimulationRules.of(context.obj.config())
        candidate = baseline if policy is None else baseline.with_file(policy)
        if memory is not None:
            candidate = replace(candidate, memory=memory)
        async with context.obj.engine(is_long=True) as engine:
            return await simulate(engine.store, engine.registry, baseline, candidate, since=parse_since(since))

    result = run(command())
    printing.print_outcome(result.to_dict(), *result.sentences(), as_json=as_json)
