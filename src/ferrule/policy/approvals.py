"""Approvals: what a person is asked, what the person decides, and that each decision is used once.

A request is stored before anybody is asked, so that any process and any interface can answer it, and so that it
survives a restart. It is bound to one caller, one version of one tool, one set of arguments and one run.
"""

from __future__ import annotations

import inspect
import json
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from hashlib import scrypt, sha256
from itertools import zip_longest
from typing import Any, Final, Literal, Protocol, TypeAlias
from uuid import uuid4

from ferrule.core.permission import Principal
from ferrule.core.spec import Tool, ToolCapability
from ferrule.errors import PermissionDenied, SetupError, StoreError
from ferrule.store import ToolCallRecord, ToolKnowledgeStore
from ferrule.store import approvals as table
from ferrule.store.encoding import parse_stored_json
from ferrule.store.escapes import escape_text, unescape_text

ApprovalState: TypeAlias = Literal["pending", "approved", "refused", "used", "expired"]
DEFAULT_EXPIRY: Final = 7 * 86_400.0
"""Seconds after which a request can no longer be approved, and an approval no longer be used."""
MAX_REASON_LENGTH: Final = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a run needs to know from a person before it continues."""

    call_id: str
    text: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CallBinding:
    """What makes a call the one that was approved."""

    principal: str
    tenant: str
    run_id: str
    tool_id: str
    action: str
    fingerprint: str
    digest: str
    """Of the validated arguments."""

    @classmethod
    def of_call(
        cls,
        principal: Principal,
        run_id: str | None,
        tool: Tool,
        capability: ToolCapability,
        arguments: Any,
        callers: Iterable[str] = (),
    ) -> CallBinding:
        """`callers` are the tools that make the call: its approval is not one for the same call by the model itself."""
        return cls(
            principal=escape_text(" through ".join([principal.identity, *callers])),
            tenant=escape_text(principal.tenant),
            run_id=escape_text(run_id or ""),
            tool_id=escape_text(tool.id),
            action=escape_text(capability.name),
            fingerprint=tool.fingerprint,
            digest=digest_of_arguments(arguments, is_secret=bool(capability.secret_names)),
        )


def digest_of_arguments(arguments: Any, *, is_secret: bool = False) -> str:
    """Differs for any two sets of arguments; ASCII JSON keeps even lone surrogates and NaN apart.

    With `is_secret` it takes long to compute, so that a short secret is not found by trying all.
    """
    text = json.dumps(arguments, sort_keys=True, default=lambda value: {"": [type(value).__qualname__, repr(value)]})
    if is_secret:
        return scrypt(text.encode(), salt=b"ferrule", n=2**14, r=8, p=1, dklen=32).hex()
    return sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequest:
    """A call that a person must approve."""

    approval_id: str = ""
    call_id: str
    """The caller's own id for the call: the model's, or that of a step of a plan."""
    tool_id: str
    action: str | None
    arguments: dict[str, Any]
    """As they may be shown: secrets are blanked."""
    reason: str
    principal: str = ""
    tenant: str = ""
    run_id: str = ""
    fingerprint: str = ""
    digest: str = ""
    created_at: float = 0.0
    expires_at: float = 0.0
    state: ApprovalState = "pending"
    decided_at: float | None = None
    decided_by: str = ""
    decision_reason: str = ""
    edited_arguments: dict[str, Any] | None = None
    """What the person wants the call to be made with instead; secrets are blanked."""
    unchanged_arguments: tuple[str, ...] = ()
    """Blanked in `edited_arguments`, because they stay as they are."""
    secret_edits: tuple[str, ...] = ()
    """Blanked in `edited_arguments`, because the person entered a secret, which only the process that was told has."""
    used_by: str = ""
    """The id of the call's record."""
    origins: dict[str, str] = field(default_factory=dict)
    """Of a call of a run that has seen text from outside: where each argument comes from."""

    def describe_origins(self) -> list[str]:
        """Return a line about each argument, for people; none if nothing came from outside."""
        return [f"{name}: {origin}" for name, origin in self.origins.items()]

    @property
    def is_of_client(self) -> bool:
        """Return whether a client has made the call, which is in no run: the client repeats it after the approval."""
        return self.principal.startswith(("client:", "token:"))

    @property
    def refusal(self) -> str:
        """Return the result of a call that the person has refused."""
        return f"The user refused this call{f': {self.decision_reason}' if self.decision_reason else '.'}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """A person's decision on a call: as it is, with other arguments, or not at all."""

    allowed: bool
    arguments: Mapping[str, Any] | None = None
    """What to call it with instead; they are validated again. A blanked secret stands for its original value."""
    reason: str = ""
    """The reason that the model gets when the call is not allowed."""

    def __post_init__(self) -> None:
        if not isinstance(self.allowed, bool):  # "no" would count as yes
            raise SetupError(f"`allowed` of an approval is True or False, not {self.allowed!r}.")
        if self.arguments is not None and not isinstance(self.arguments, Mapping):
            raise SetupError(f"The arguments of an approval are values by name, not {self.arguments!r}.")


class Answerer(Protocol):
    """A user who answers questions of a run; the method may be async. None means: not now, let the run wait."""

    def answer(self, question: Question, /) -> Awaitable[str | None] | str | None: ...


class Approver(Protocol):
    """A user who decides about calls of a run; the method may be async. None means: not now, let the run wait."""

    def approve(self, request: ApprovalRequest, /) -> Awaitable[Approval | bool | None] | Approval | bool | None: ...


Person: TypeAlias = Answerer | Approver
"""A user who can be asked while a run goes on. For what its methods do not reply to, the run waits."""


def check_person(person: Person | None) -> Person | None:
    """Return the person; SetupError for an object without its methods, such as a function."""
    if person is None or hasattr(person, "approve") or hasattr(person, "answer"):
        return person
    raise SetupError(f"person must have a method approve(request) or answer(question): {person!r} has neither.")


async def ask_person(person: Person, request: ApprovalRequest | Question) -> Approval | str | None:
    """Return what a person replies to a request; None without a reply, or a method for it."""
    method = getattr(person, "answer" if isinstance(request, Question) else "approve", None)
    reply: Any = None if method is None else method(request)
    if inspect.isawaitable(reply):
        reply = await reply
    if isinstance(request, ApprovalRequest) and isinstance(reply, bool):
        return Approval(allowed=reply)
    if isinstance(request, ApprovalRequest) and not isinstance(reply, (Approval, type(None))):
        raise SetupError(
            f"person.approve returned {reply!r}. Return True, False, an Approval, or None to let the run wait."
        )
    decided: Approval | str | None = reply
    return decided


class Approvals:
    """The approval requests of a store."""

    def __init__(
        self,
        store: ToolKnowledgeStore,
        *,
        expiry: float = DEFAULT_EXPIRY,
        clock: Callable[[], float] = time.time,
        on_change: Callable[[ApprovalRequest], None] | None = None,
    ) -> None:
        """`expiry` is in seconds. `on_change` gets requests when they are made and when they are decided here."""
        self._store, self._expiry, self._clock = store, expiry, clock
        self._on_change = on_change
        self._secret_edits: dict[str, dict[str, Any]] = {}
        """Values that people entered and that must not be stored, by approval id."""

    async def request(
        self,
        binding: CallBinding,
        *,
        call_id: str,
        arguments: Mapping[str, Any],
        reason: str,
        origins: Mapping[str, str] | None = None,
    ) -> ApprovalRequest:
        """Store a request, or return the open one for the same call. `arguments` are those that may be shown.

        `origins` say where each of them comes from.
        """
        now = self._clock()
        values = {
            "approval_id": uuid4().hex[:16],
            "state": "pending",
            "created_at": now,
            "expires_at": now + self._expiry,
            **asdict(binding),
            "call_id": escape_text(call_id),
            "arguments": json.dumps(self._store.redaction.redact(arguments)),
            "reason": escape_text(shorten_text(reason)),
            "origins": json.dumps(self._store.redaction.redact(origins)) if origins else "",
        }
        request = self._from_row(await self._store.query(table.insert_approval, values))
        if self._on_change is not None and request.approval_id == values["approval_id"]:
            self._on_change(request)
        return request

    async def get(self, approval_id: str) -> ApprovalRequest:
        row = await self._store.query(table.find_approval, approval_id)
        if row is None:
            raise SetupError(f"There is no approval request {approval_id!r}. `ferrule approvals list` shows them.")
        return self._from_row(row)

    async def list_requests(
        self,
        *,
        state: ApprovalState | None = None,
        run_id: str | None = None,
        tenant: str | None = None,
        limit: int = 100,
    ) -> list[ApprovalRequest]:
        """Return requests, the newest first: of one tenant (an empty text: of no tenant), or of all."""
        return (await self.list_and_count(state=state, run_id=run_id, tenant=tenant, limit=limit))[0]

    async def list_and_count(
        self,
        *,
        state: ApprovalState | None = None,
        run_id: str | None = None,
        tenant: str | None = None,
        limit: int = 100,
    ) -> tuple[list[ApprovalRequest], int]:
        """Return requests, the newest first, and their number without the limit."""
        run_id, tenant = (None if value is None else escape_text(value) for value in (run_id, tenant))
        rows, count = await self._store.query(table.list_approvals, state, run_id, tenant, limit, self._clock())
        return [self._from_row(row) for row in rows], count

    async def list_decided_runs(self, since: float) -> list[tuple[str, str, float]]:
        """Return what was decided since a time and has not expired: the id, the run and the time of each."""
        rows = await self._store.query(table.list_decided_runs, since, self._clock())
        return [(approval_id, unescape_text(run_id), decided_at) for approval_id, run_id, decided_at in rows]

    async def record_decision(self, approval_id: str, approval: Approval | bool, *, by: str = "") -> ApprovalRequest:
        """Approve or refuse a request; SetupError when it was decided before, was used, or has expired.

        An approval that was not used yet can still be refused.
        """
        if isinstance(approval, bool):
            approval = Approval(allowed=approval)
        edits, secrets = self._separate_secrets(await self.get(approval_id), approval)
        values: dict[str, Any] = {
            "state": "approved" if approval.allowed else "refused",
            "decided_at": self._clock(),
            "decided_by": escape_text(by or os.environ.get("USER") or os.environ.get("USERNAME") or "local"),
            "decision_reason": escape_text(shorten_text(approval.reason)),
            "edited_arguments": None if edits is None else json.dumps(edits),
        }
        states = ("pending",) if approval.allowed else table.OPEN_STATES
        is_decided = await self._store.query(table.decide_approval, approval_id, values, states, self._clock())
        if is_decided:
            self._secret_edits.pop(approval_id, None)
            if secrets and approval.allowed:
                self._secret_edits[approval_id] = secrets
        request = await self.get(approval_id)
        if not is_decided:
            raise SetupError(f"The approval {approval_id!r} cannot be decided any more: {explain_state(request)}")
        if self._on_change is not None:
            self._on_change(request)
        return request

    async def find_decision(self, binding: CallBinding, approval_id: str | None) -> ApprovalRequest | None:
        """Return the decided request that covers a call: the one with the id, or the latest of the binding's run."""
        if approval_id is None and not binding.run_id:
            return None
        row = await self._store.query(table.find_decision, asdict(binding), approval_id, self._clock())
        return None if row is None else self._from_row(row)

    async def use(
        self,
        request: ApprovalRequest,
        binding: CallBinding,
        record: ToolCallRecord,
        *,
        secret_names: frozenset[str] = frozenset(),
    ) -> bool:
        """Use an approval for one call and record that this has started; False when another call was first."""
        is_used = await self._store.use_approval(
            request.approval_id, asdict(binding), record, now=self._clock(), secret_names=secret_names
        )
        if is_used:
            self._secret_edits.pop(request.approval_id, None)
        return is_used

    def edit_arguments(self, request: ApprovalRequest, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the arguments that the person wants instead; None when the call is approved as it is."""
        if request.edited_arguments is None:
            return None
        entered = self._secret_edits.get(request.approval_id, {})
        if missing := [name for name in request.secret_edits if name not in entered]:
            raise PermissionDenied(
                f"The approval {request.approval_id!r} changes {', '.join(missing)} to a secret, and secrets are not "
                "stored. Approve the call where it is made."
            )
        edited = {**request.edited_arguments, **entered}
        return {
            name: arguments[name]
            if name in request.unchanged_arguments and name in arguments
            else self._restore_hidden_values(value, request.arguments.get(name), arguments.get(name))
            for name, value in edited.items()
        }

    def _restore_hidden_values(self, value: Any, displayed: Any, original: Any) -> Any:
        """Return an edited value with the secrets that were not shown to the person, each in its place."""
        if isinstance(value, str) and self._store.redaction.replacement in value:
            if value == displayed:
                return original
            raise SetupError(f"{value[:100]!r} has a part that is not shown. Leave it as it is, or write all of it.")
        if isinstance(value, Mapping):
            inner = [each if isinstance(each, Mapping) else {} for each in (displayed, original)]
            return {
                name: self._restore_hidden_values(each, *(i.get(name) for i in inner)) for name, each in value.items()
            }
        if isinstance(value, list):
            items = [each if isinstance(each, list) else [] for each in (displayed, original)]
            return [self._restore_hidden_values(*members) for members in zip_longest(value, *items)][: len(value)]
        return value

    def _separate_secrets(
        self, request: ApprovalRequest, approval: Approval
    ) -> tuple[dict[str, Any] | None, dict[str, Any]]:
        """Return what is stored of edited arguments, and the secrets among them."""
        if approval.arguments is None:
            return None, {}
        redaction, displayed = self._store.redaction, request.arguments
        unchanged, secrets, stored = [], {}, {}
        for name, value in approval.arguments.items():
            is_blank = redaction.replacement in str(displayed.get(name, ""))
            is_new = is_blank and redaction.replacement not in str(value)
            self._restore_hidden_values(value, displayed.get(name), None)  # to report now what could not be used later
            if is_blank and value == displayed[name]:
                unchanged.append(name)
            elif is_new or redaction.redact(value) != value or redaction.redact({name: value}) != {name: value}:
                secrets[name] = value
            else:
                stored[name] = value
        return {"arguments": stored, "unchanged": unchanged, "secret": sorted(secrets)}, secrets

    def _from_row(self, row: Mapping[str, Any]) -> ApprovalRequest:
        names = {field.name for field in fields(ApprovalRequest)}
        values: dict[str, Any] = {name: row[name] for name in names if name in row}
        values |= {name: unescape_text(value) for name, value in values.items() if isinstance(value, str)}
        edits = values.pop("edited_arguments")
        if edits is not None:
            try:
                decoded = parse_stored_json(edits)
                unchanged, secret = tuple(decoded["unchanged"]), tuple(decoded["secret"])
                display = {
                    **decoded["arguments"],
                    **dict.fromkeys((*unchanged, *secret), self._store.redaction.replacement),
                }
            except (StoreError, KeyError, TypeError) as error:
                raise StoreError(
                    f"the edited arguments of the approval {values['approval_id']!r} are damaged in the database. "
                    "Restore a backup, or make the call again in another run"
                ) from error
            values |= {"edited_arguments": display, "unchanged_arguments": unchanged, "secret_edits": secret}
        is_expired = values["state"] in table.OPEN_STATES and values["expires_at"] <= self._clock()
        return ApprovalRequest(
            **{
                **values,
                "state": "expired" if is_expired else values["state"],
                "arguments": parse_stored_json(values["arguments"]),
                "origins": parse_stored_json(values["origins"]) if values["origins"] else {},
            }
        )


def explain_mismatch(request: ApprovalRequest, binding: CallBinding) -> str:
    """Return why a request does not cover a call, as a sentence."""
    if request.state != "approved":
        return f"The approval {request.approval_id!r} cannot be used: {explain_state(request)}"
    bound = (unescape_text(binding.principal), unescape_text(binding.tenant), unescape_text(binding.run_id))
    if (request.principal, request.tenant, request.run_id) != bound:
        reason = "is for another caller or another run"
    elif (request.tool_id, request.action) != (unescape_text(binding.tool_id), unescape_text(binding.action)):
        reason = f"is for {request.tool_id!r}"
    elif request.fingerprint != binding.fingerprint:
        reason = f"is for an earlier version of {request.tool_id!r}"
    else:
        reason = "is for other arguments"
    return f"The approval {request.approval_id!r} {reason}."


def explain_state(request: ApprovalRequest) -> str:
    """Return what has become of a request, as a sentence."""
    who = f" by {request.decided_by}" if request.decided_by else ""
    why = f": {request.decision_reason.rstrip('.')}" if request.decision_reason else ""
    return {
        "pending": "it waits for a decision.",
        "approved": f"it was approved{who}, and is not used yet.",
        "refused": f"it was refused{who}{why}.",
        "used": f"it was approved{who}, and used already by the call {request.used_by}.",
        "expired": "it has expired. Make the call again to get a new request.",
    }[request.state]


def shorten_text(text: str) -> str:
    """Cut a reason that is longer than a page."""
    return text if len(text) <= MAX_REASON_LENGTH else f"{text[:MAX_REASON_LENGTH]} … [{len(text):,} characters]"
