"""What a run of a plan writes down as it goes, beside and after which it can be gone on with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ferrule.agent.run import BOOKS
from ferrule.content import encode_json
from ferrule.errors import SetupError, ToolNotFound
from ferrule.library import UnifiedToolLibrary
from ferrule.redaction.rule import MOST_SECRETS
from ferrule.workflow.references import steps_referred_to


class RunNotes:
    """The book of one run. What steps hand to tools as secrets is not in it."""

    def __init__(self, library: UnifiedToolLibrary, run_id: str) -> None:
        self.run_id, self._store, self._number = run_id, library.engine.store, 0
        self._registry = library.engine.registry
        self._secrets: dict[str, None] = {}
        self.may_hold_secrets = False
        """Whether something that was watched must not be written down as it is."""

    def write(self, kind: str, **said: Any) -> None:
        if "plan" in said:
            said["plan"] = self.learn(said["plan"])
        self._number += 1
        self._store.note(BOOKS + self.run_id, f"{self._number:08}", {"kind": kind, **self.without_secrets(said)})

    def learn(self, plan: dict[str, Any]) -> dict[str, Any]:
        """A plan as it may be written down. Its secrets are in nothing that is written later either."""
        return {**plan, "steps": [self._step_without_secrets(step) for step in plan["steps"]]}

    def watch(self, said: Any) -> None:
        """Look for secrets in something new, so that the whole need not be searched again and again."""
        if not self.may_hold_secrets:
            self.may_hold_secrets = bool(self._secrets) or self._store.redaction.suspects(encode_json(said).decode())

    def without_secrets(self, said: Any) -> Any:
        """As it may be written down elsewhere too. What looks like a secret is taken out of notes by the store."""
        secrets = tuple(self._secrets)
        for at in range(0, len(secrets), MOST_SECRETS):
            said = self._store.redaction.clean(said, secrets[at : at + MOST_SECRETS])
        return said

    async def read(self) -> list[Mapping[str, Any]]:
        entries = await self._store.notes(BOOKS + self.run_id)
        if not entries:
            raise SetupError(
                f"There is no run {self.run_id!r} in this store. `ferrule runs list` shows those there are."
            )
        self._number = int(max(entries))
        return list(entries.values())

    def _step_without_secrets(self, step: dict[str, Any]) -> dict[str, Any]:
        try:
            declared = self._registry.find(step["tool_type"])[1].secret_names
        except ToolNotFound:
            return step
        given = {name: value for name, value in step["parameters"].items() if not steps_referred_to(value)}
        redaction = self._store.redaction
        self._secrets |= dict.fromkeys(redaction.secrets_of(given, declared))
        secret = given.keys() & declared
        if not secret:
            return step
        return {**step, "parameters": {**step["parameters"], **dict.fromkeys(secret, redaction.replacement)}}
