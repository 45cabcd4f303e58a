"""Models behind OpenAI's chat API: OpenAI itself, and everything that speaks like it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ferrule.errors import MissingExtra, ModelRefused
from ferrule.models.client import LazyClient
from ferrule.models.model import ModelReply, ModelRequest, TextSink
from ferrule.models.negotiation import Negotiation
from ferrule.models.openai_draft import Draft
from ferrule.models.openai_errors import OPENAI_ERRORS
from ferrule.models.openai_request import WISHES, chat_parameters

if TYPE_CHECKING:
    from openai import AsyncOpenAI


class OpenAIModel:
    """A model of OpenAI, Ollama, vLLM, llama.cpp, DeepSeek, Qwen … : whatever answers at the base URL.

    Base URL and key come from `OPENAI_BASE_URL` and `OPENAI_API_KEY` unless they are given. A base URL that is given
    goes without the key of the environment, which is somebody else's; most local servers need none.
    It makes one attempt; `PatientModel` makes more.
    """

    def __init__(self, model: str, *, base_url: str | None = None, api_key: str | None = None) -> None:
        self.model = model
        if api_key is None and base_url is None:
            api_key = os.environ.get("OPENAI_API_KEY")
        if base_url is None:
            base_url = os.environ.get("OPENAI_BASE_URL")
        self.base_url = base_url or None
        self._api_key = api_key or None
        self._client = LazyClient(self._make_client)
        self._negotiation = Negotiation(self.name, WISHES, OPENAI_ERRORS)
        # OpenAI's own models take only the new name, most other servers know only the old one.
        names = ("max_completion_tokens", "max_tokens")
        at_openai = self.base_url is None or "api.openai.com" in self.base_url
        self._length_names = names if at_openai else (names[1], names[0])

    @property
    def name(self) -> str:
        return f"openai:{self.model}"

    async def generate(self, request: ModelRequest, on_text: TextSink | None = None) -> ModelReply:
        client = await self._client.get()
        return await self._negotiation.ask(
            lambda concessions: chat_parameters(
                request,
                model=self.model,
                length_names=self._length_names,
                stream=on_text is not None,
                concessions=concessions,
            ),
            lambda parameters: self._answer(client, parameters, on_text),
        )

    async def aclose(self) -> None:
        """Close the connections. The model can still be used; it opens new ones."""
        await self._client.aclose()

    async def _answer(self, client: AsyncOpenAI, parameters: dict[str, Any], on_text: TextSink | None) -> ModelReply:
        draft = Draft(on_text)
        answer: Any = await client.chat.completions.create(**parameters)
        if on_text is None:
            _check(answer, self.name)
            draft.add(answer)
        else:
            async with answer as stream:
                async for chunk in stream:
                    draft.add(chunk)
        return draft.reply(model=self.name)

    def _make_client(self) -> AsyncOpenAI:
        try:
            from openai import AsyncOpenAI
        except ImportError:
            raise MissingExtra("openai", "openai") from None
        if self._api_key is None and self.base_url is None:
            raise ModelRefused(
                f"There is no API key for {self.name!r}. "
                "Set OPENAI_API_KEY, or OPENAI_BASE_URL for a server that needs none."
            )
        return AsyncOpenAI(
            api_key=self._api_key or "none",
            base_url=self.base_url or "https://api.openai.com/v1",
            max_retries=0,
        )


def _check(answer: Any, model: str) -> None:
    """Some servers answer with status 200 and something else: a web page, or an error in JSON."""
    if getattr(answer, "choices", None):
        return
    problem = getattr(answer, "error", None) or (answer if isinstance(answer, str) else "no choices in it")
    raise ModelRefused(
        f"Model {model!r} answered with something that is no chat completion: {str(problem)[:300]!r}. "
        "Check the base URL; most end in /v1."
    )
