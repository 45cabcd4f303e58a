"""Who makes a request, and what that client is shown of calls, runs, conversations, approvals, costs and events.

A client is the holder of a token or of a session, or the user of this machine. A client sees what it did itself.
Who approves or administers for a tenant sees everything in it, and an administrator without a tenant everything.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from ferrule.catalog.registry import RegistrySnapshot
from ferrule.core.events import ToolEngineEvent
from ferrule.core.permission import LOCAL_USER, Principal
from ferrule.errors import StoreError, ToolNotFound, text_with_notes
from ferrule.memory.conversation import Turn
from ferrule.policy.approvals import ApprovalRequest
from ferrule.policy.policy import Permissions
from ferrule.server.call_limits import CallLimits, ClientCalls
from ferrule.server.oauth import TokenVerifier
from ferrule.server.responses import Problem
from ferrule.server.tokens import TOKEN_PREFIX, AccessToken, Permission, Tokens, hash_token
from ferrule.store.record import ToolCallRecord

logger = logging.getLogger("ferrule.server")

CHECK_INTERVAL: Final = 2.0
"""Seconds for which a token is valid without asking the store: a revoked one is refused everywhere within this time."""
MAX_ANSWER_AGE: Final = 300.0
"""Seconds for which a token is valid while the store does not answer."""
LOOKUP_TIMEOUT: Final = 1.0
"""Seconds that a request with a token that was valid before waits for the store."""
MAX_LOOKUPS: Final = 4
"""At the same time: a store that hangs must not take all threads, whatever tokens clients invent."""
MAX_KNOWN_TOKENS: Final = 10_000
_NO_TOKEN: Final = ""
"""In place of the hash of a token: whether requests need one."""


@dataclass(eq=False, kw_only=True)
class Client:
    """Who makes requests: the holder of a token, or the user of this machine where there are no tokens."""

    token: AccessToken | None
    calls: ClientCalls

    @property
    def principal(self) -> Principal:
        return LOCAL_USER if self.token is None else self.token.principal

    @property
    def agent_principal(self) -> Principal | None:
        """Return who makes the calls that a model chooses; None for the orchestrator's default."""
        return None if self.token is None else self.token.agent_principal

    @property
    def name(self) -> str:
        return self.principal.label

    @property
    def identity(self) -> str | None:
        """Return the id of the token or session; None for the user of this machine."""
        return None if self.token is None else self.token.token_id

    @property
    def tenant(self) -> str:
        return "" if self.token is None else self.token.tenant

    def add_tenant(self, conversation_id: str) -> str:
        """Return the conversation's id in the store: with the tenant in front, so that ids never collide."""
        return f"{self.tenant}/{conversation_id}" if self.tenant else conversation_id

    @property
    def sees_all_tenants(self) -> bool:
        return self.token is None or self.token.sees_all_tenants

    def may(self, permission: Permission) -> bool:
        return self.token is None or self.token.may(permission)

    def require(self, permission: Permission) -> None:
        if not self.may(permission):
            roles = ", ".join(sorted(self.token.roles)) if self.token is not None else ""
            headers = {"WWW-Authenticate": 'Bearer error="insufficient_scope"'}
            raise Problem(403, f"The token {self.name!r} ({roles}) may not {permission}.", headers=headers)


@dataclass(eq=False, slots=True)
class _Answer:
    """What the store has said about a token."""

    client: Client | None
    """None if the token is not valid."""
    asked_at: float
    due_at: float
    """When the store is to be asked again."""


class Authenticator:
    """Finds the client of a request by its token or session."""

    def __init__(
        self, tokens: Tokens, limits: CallLimits, *, is_open: bool, verifier: TokenVerifier | None = None
    ) -> None:
        """`is_open`: requests need no token, until one is created. `verifier` accepts tokens of an issuer too."""
        self._tokens, self._limits, self._is_open, self._verifier = tokens, limits, is_open, verifier
        self._answers: OrderedDict[str, _Answer] = OrderedDict()
        """By the hashes of tokens."""
        self._lookups: dict[str, asyncio.Task[Client | None]] = {}
        self._lookup_slots = defaultdict[tuple[bool, bool], asyncio.Semaphore](lambda: asyncio.Semaphore(MAX_LOOKUPS))
        """By whether a token is known, and whether it is of this server: no kind of look-ups holds up another."""
        self._changes = 0
        """How many tokens were created or revoked here: what a look-up finds meanwhile may be from before."""
        self._is_failing = False
        self._local = Client(token=None, calls=ClientCalls())

    async def find_client(self, text: str | None) -> Client | None:
        """Find the client with this token; the local user while no tokens exist, whatever a client sends.

        While the store does not answer, what it has said in the last `MAX_ANSWER_AGE` seconds counts. Raises StoreError
        if it has said nothing.
        """
        if self._is_open:
            local = await self._find(_NO_TOKEN, None)
            if local is not None:
                return local
            self._is_open = False  # also when all tokens have expired
        return None if text is None else await self._find(hash_token(text), text)

    async def _find(self, key: str, text: str | None) -> Client | None:
        while True:
            answer = self._find_answer(key)
            if answer is not None and time.monotonic() < answer.due_at:
                return answer.client
            lookup = self._lookups.get(key)
            if lookup is None:
                lookup = self._lookups[key] = asyncio.create_task(self._look_up(key, text))
                lookup.add_done_callback(partial(self._end_lookup, key))
            await asyncio.wait({lookup}, timeout=None if answer is None else LOOKUP_TIMEOUT)
            if answer is None or (lookup.done() and not isinstance(lookup.exception(), StoreError)):
                return lookup.result()
            if self._answers.get(key) is answer:  # or else the token was revoked meanwhile
                if not lookup.done():
                    answer.due_at = float("inf")  # until the look-up has ended
                return answer.client

    def _find_answer(self, key: str) -> _Answer | None:
        answer = self._answers.get(key)
        if answer is None:
            return None
        age, max_age = time.monotonic() - answer.asked_at, CHECK_INTERVAL if answer.client is None else MAX_ANSWER_AGE
        if age >= max_age:
            return None
        token = None if answer.client is None else answer.client.token
        return answer if token is None or self._tokens.is_valid(token) else None

    async def _look_up(self, key: str, text: str | None) -> Client | None:
        is_known = (answer := self._answers.get(key)) is not None and answer.client is not None
        async with self._lookup_slots[is_known, text is None or text.startswith(TOKEN_PREFIX)]:
            try:
                while True:
                    changes, asked_at = self._changes, time.monotonic()
                    client = await self._ask_store(key, text)
                    if changes == self._changes:
                        break
            except StoreError as error:
                if not self._is_failing:
                    logger.warning("error=<%s> | tokens cannot be looked up", text_with_notes(error))
                self._is_failing = True
                raise
        self._is_failing = False
        self._answers[key] = _Answer(client, asked_at, asked_at + CHECK_INTERVAL)
        self._answers.move_to_end(key, last=client is not None)  # texts of unknown clients must not replace tokens
        if len(self._answers) > MAX_KNOWN_TOKENS:
            self._answers.popitem(last=False)
        return client

    async def _ask_store(self, key: str, text: str | None) -> Client | None:
        if text is None:
            return None if await self._tokens.any_exist() else self._local
        verifier = None if text.startswith(TOKEN_PREFIX) else self._verifier
        token = await (self._tokens.find(text) if verifier is None else verifier.verify(text))
        if token is None:
            return None
        earlier = self._answers.get(key)
        if earlier is not None and earlier.client is not None and earlier.client.token == token:
            return earlier.client
        return Client(token=token, calls=self._limits.find(token))

    def _end_lookup(self, key: str, lookup: asyncio.Task[Client | None]) -> None:
        del self._lookups[key]
        has_failed = lookup.cancelled() or lookup.exception() is not None
        if has_failed and (answer := self._answers.get(key)) is not None:
            answer.due_at = time.monotonic() + CHECK_INTERVAL

    def on_token_created(self) -> None:
        """Ask the store at the next request, because requests need a token from now on."""
        self._changes += 1
        self._answers.pop(_NO_TOKEN, None)

    def forget(self, token_id: str) -> None:
        """Ask the store again about a token and its sessions, because it was just revoked here."""
        self._changes += 1
        for key, answer in list(self._answers.items()):
            token = None if answer.client is None else answer.client.token
            if token is not None and token_id in (token.token_id, token.parent_id):
                del self._answers[key]

    def challenge(self, text: str | None) -> str:
        """Return the header `WWW-Authenticate` for a request without a valid token."""
        challenge = "Bearer" if self._verifier is None else self._verifier.challenge
        if text is None:
            return challenge
        return f'{challenge}{"," if self._verifier is not None else ""} error="invalid_token"'


# What a client is shown; every route and the stream of events ask here


class Visibility:
    """What one client may see."""

    def __init__(self, client: Client, permissions: Permissions) -> None:
        self._client, self._permissions = client, permissions
        own = frozenset(each.label for each in (client.principal, client.agent_principal) if each is not None)
        self.principals = None if client.may("approve") else own
        """The only ones in the tenant whose data the client sees, by their labels; None for all."""

    @property
    def tenant(self) -> str | None:
        """Return the only tenant whose data the client sees; None for all."""
        return None if self._client.sees_all_tenants else self._client.tenant

    def shows_call(self, record: ToolCallRecord) -> bool:
        return self._shows(record.principal, record.tenant)

    def shows_failure(self, name: str, action: str | None, snapshot: RegistrySnapshot) -> bool:
        """Return whether a client is shown what was learned from calls of all clients: patterns without values.

        The client must be permitted to call every tool with this name and action, with any arguments: a rule about
        arguments is about what others pass too.
        """
        if self.principals is None:
            return True
        try:
            tool, capability = snapshot.find(name, action)
        except ToolNotFound:
            return False
        decisions = [
            self._permissions.decide(each, same)
            for each in snapshot.by_id[tool.id]
            for same in each.spec.capabilities
            if same.name == capability.name
        ]
        return all(each.verdict != "deny" and not each.depends_on_arguments for each in decisions)

    def shows_event(self, event: ToolEngineEvent) -> bool:
        if self._client.sees_all_tenants:
            return True
        if event.principal is None:
            tool = event.data.get("tool")  # that was loaded, changed or removed; what went wrong is for administrators
            return tool is not None and self._permissions.may_use(tool)
        request = event.data.get("request")
        if isinstance(request, ApprovalRequest):
            return self.shows_request(request)
        return self._shows(event.principal.label, event.principal.tenant)

    def shows_request(self, request: ApprovalRequest) -> bool:
        # What follows the label, if anything: a digest of restrictions, or the tools that make the call.
        return self._shows(request.principal.partition(" ")[0].partition("#")[0], request.tenant)

    def shows_run(self, binding: Mapping[str, Any]) -> bool:
        """Return whether a run is shown, by what was stored when the run began."""
        return self._shows(binding.get("principal"), binding.get("tenant"))

    def shows_conversation(self, turns: Sequence[Turn]) -> bool:
        """Return whether a conversation of the tenant is shown and may be continued."""
        return all(self._shows(turn.principal, self._client.tenant) for turn in turns)

    def _shows(self, principal: str | None, tenant: str | None) -> bool:
        is_of_tenant = self.tenant in (None, tenant or "")
        return is_of_tenant and (self.principals is None or principal in self.principals)
