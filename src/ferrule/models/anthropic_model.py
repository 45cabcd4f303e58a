"""Claude, by Anthropic's own API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ferrule.errors import MissingExtra, ModelRefused
from ferrule.models.answer_schema import schema_in_words
from ferrule.models.anthropic_draft import Draft
from ferrule.models.anthropic_errors import ANTHROPIC_ERRORS
from ferrule.models.anthropic_messages import anthropic_conversation, anthropic_tools
from ferrule.models.anthropic_thoughts import Thoughts
from ferrule.models.client import LazyClient
from ferrule.models.model import ModelReply, ModelRequest, TextSink
from ferrule.models.negotiation import Concessions, Negotiation, Wish

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

_CACHED: Final = {"cache_control": {"type": "ephemeral"}}
_CHOICES: Final = {"required": {"type": "any"}, "none": {"type": "none"}}

WISHES: Final = (
    # Claude refuses forced calls where it always thinks.
    Wish(name="choice", parameters=("tool_choice",), words=("tool_choice", "tool choice", "forced tool")),
    Wish(name="answer", parameters=("output_config",), words=("output_config", "json_schema", "schema", "structured")),
    Wish(name="thoughts", parameters=("messages",), words=("signature", "thinking block", "thinking` block")),
    Wish(name="cache", parameters=("cache_control",), words=("cache_control", "cache control")),
)


class AnthropicModel:
    """A model of Anthropic, or of a server that speaks like it.

    Key and base URL come from the environment as Anthropic's SDK reads it (`ANTHROPIC_API_KEY`, …) unless they are
    given. A base URL that is given goes without the key of the environment.
    `temperature` is not sent: Anthropic's API has no such thing any more.
    """

    def __init__(
        self, model: str, *, base_url: str | None = None, api_key: str | None = None, max_tokens: int = 16_384
    ) -> None:
        self.model = model
        self.base_url = base_url
        self.max_tokens = max_tokens
        """For requests that name no limit: this API wants one. Thoughts count."""
        self._api_key = api_key or ("none" if base_url else None)
        self._client = LazyClient(self._make_client)
        self._negotiation = Negotiation(self.name, WISHES, ANTHROPIC_ERRORS)
        self._thoughts = Thoughts()

    @property
    def name(self) -> str:
        return f"anthropic:{self.model}"

    async def generate(self, request: ModelRequest, on_text: TextSink | None = None) -> ModelReply:
        client = await self._client.get()
        return await self._negotiation.ask(
            lambda concessions: self._parameters(request, concessions),
            lambda parameters: self._answer(client, parameters, on_text),
        )

    async def aclose(self) -> None:
        """Close the connections. The model can still be used; it opens new ones."""
        await self._client.aclose()

    async def _answer(self, client: AsyncAnthropic, parameters: dict[str, Any], on_text: TextSink | None) -> ModelReply:
        # Always as a stream: long answers are refused otherwise, and of a call that was cut off only the stream shows
        # that its arguments are not whole.
        draft = Draft(on_text)
        async with await client.messages.create(**parameters, stream=True) as stream:
            async for event in stream:
                draft.add(event)
        reply = draft.reply(model=self.name)
        self._thoughts.keep(parameters, draft.content())
        return reply

    def _parameters(self, request: ModelRequest, concessions: Concessions) -> dict[str, Any]:
        """Everything for `messages.create`, less what the server has refused before."""
        given_up = concessions.get
        system, turns = anthropic_conversation(request.messages)
        parameters: dict[str, Any] = {
            "model": self.model,
            "max_tokens": request.max_tokens or self.max_tokens,
            "messages": turns,
        }
        if request.tools and not (request.tool_choice == "none" and given_up("choice")):
            parameters["tools"] = anthropic_tools(request.tools)
            if request.tool_choice != "auto" and not given_up("choice"):
                parameters["tool_choice"] = _CHOICES[request.tool_choice]
        if request.answer_schema is not None:
            format = None if given_up("answer") else _answer_format(request.answer_schema)
            if format is None:
                system = f"{system}\n\n{schema_in_words(request.answer_schema)}".lstrip()
            else:
                parameters["output_config"] = {"format": format}
        if system:
            parameters["system"] = [{"type": "text", "text": system}]
        if not given_up("thoughts"):
            self._thoughts.restore(parameters)
        if not given_up("cache"):
            _mark_for_cache(parameters)
        return parameters

    def _make_client(self) -> AsyncAnthropic:
        try:
            from anthropic import AnthropicError, AsyncAnthropic
        except ImportError:
            raise MissingExtra("anthropic", "anthropic") from None
        try:
            client = AsyncAnthropic(api_key=self._api_key, base_url=self.base_url, max_retries=0)
        except AnthropicError as error:  # it looks for credentials in files, too
            raise ModelRefused(f"There is no API key for {self.name!r}: {error} Or set ANTHROPIC_API_KEY.") from error
        if client.api_key is None and client.auth_token is None and client.credentials is None:
            raise ModelRefused(f"There is no API key for {self.name!r}. Set ANTHROPIC_API_KEY.")
        return client


def _answer_format(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """The schema as Claude can be held to it; None for one that it cannot."""
    from anthropic import transform_schema

    try:
        return {"type": "json_schema", "schema": transform_schema(dict(schema))}
    except ValueError:
        return None


def _mark_for_cache(parameters: dict[str, Any]) -> None:
    """Two marks: what is the same for every conversation (tools and system), and the conversation so far."""
    for part in ("system", "tools"):
        if blocks := parameters.get(part):
            blocks[-1] = {**blocks[-1], **_CACHED}
            break
    parameters.update(_CACHED)
