"""What a server will not take is left out, once it has said so.

Servers that speak the same API differ in what they know: one has no `stream_options`, another no `temperature`, a
third no JSON Schema. None says so beforehand. So everything is asked for; a refusal that names what it does not like
costs one more request, and is remembered.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ferrule.models.failures import Verdicts, model_error
from ferrule.models.model import ModelReply

logger = logging.getLogger("ferrule.models")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Something asked for that a server may not know."""

    name: str
    parameters: tuple[str, ...]
    """Those of the request that ask for it."""
    words: tuple[str, ...]
    """A refusal with one of these is about it."""
    steps: int = 1
    """How often less can be asked for, until it is given up."""


Concessions: TypeAlias = Mapping[str, int]
"""How many steps down each wish has gone."""
Parameters: TypeAlias = dict[str, Any]

_REFUSALS = frozenset({400, 422})
_ABOUT_SIZE = ("context length", "context window", "context size", "too long", "too large", "at most")
"""Such a refusal may name `max_tokens`, too, but it is the number that is wrong."""


class Negotiation:
    """Asks a server, and asks for less when it refuses a wish. Other failures become model errors."""

    def __init__(self, model: str, wishes: Sequence[Wish], verdicts: Verdicts) -> None:
        self._model, self._wishes, self._verdicts = model, wishes, verdicts
        self._concessions: Concessions = {}

    async def ask(
        self, build: Callable[[Concessions], Parameters], send: Callable[[Parameters], Awaitable[ModelReply]]
    ) -> ModelReply:
        concessions = self._concessions
        while True:
            parameters = build(concessions)
            try:
                return await send(parameters)
            except Exception as error:
                less = self._concede(error, parameters, concessions)
                if less is None:
                    failure = model_error(error, self._verdicts, model=self._model)
                    if failure is None:
                        raise
                    raise failure from error
                concessions = less
                if "invalid schema" not in str(error).casefold():  # else it is only this schema
                    self._concessions = less

    def _concede(self, error: Exception, parameters: Parameters, concessions: Concessions) -> Concessions | None:
        """What to do without after this refusal; None when it is not about any wish."""
        if getattr(error, "status_code", None) not in _REFUSALS:
            return None
        said = f"{getattr(error, 'param', '')} {getattr(error, 'body', '')} {error}".casefold()
        if any(words in said for words in _ABOUT_SIZE):
            return None
        for wish in self._wishes:
            step = concessions.get(wish.name, 0)
            asked_for = step < wish.steps and any(parameter in parameters for parameter in wish.parameters)
            if asked_for and any(word in said for word in wish.words):
                logger.warning(
                    "model=<%s>, wish=<%s> | the server refused it, less is asked for", self._model, wish.name
                )
                return {**concessions, wish.name: step + 1}
        return None
