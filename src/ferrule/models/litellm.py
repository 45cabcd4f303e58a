"""Models through the litellm library, which speaks the APIs of about a hundred providers."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

from ferrule.errors import MissingExtra
from ferrule.models.keys import key_variable
from ferrule.models.openai import OpenAIModel

_LIBRARY_SETTINGS = {
    "LITELLM_MODE": "PRODUCTION",  # or else it reads the .env file of the folder
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # or else it downloads a list of prices when it is imported
}


class LiteLLMModel(OpenAIModel):
    """A model by litellm's name for it, such as `groq/llama-4-scout`. Requests and replies have OpenAI's form.

    litellm reads the keys of most providers from variables; `environ` has those that the user stored.
    """

    def __init__(self, model: str, *, environ: Mapping[str, str] = os.environ) -> None:
        super().__init__(model, base_url="", api_key="", provider="litellm")
        self._environ = environ

    def _create_client(self) -> Any:
        for name, value in _LIBRARY_SETTINGS.items():
            os.environ.setdefault(name, value)
        try:
            litellm: Any = importlib.import_module("litellm")
        except ImportError:
            raise MissingExtra("litellm", "litellm") from None
        litellm.suppress_debug_info = True  # or else it prints advice to standard output
        return _LiteLLMClient(litellm, self.model, self._environ)


class _LiteLLMClient:
    """litellm in the form of OpenAI's client, as far as `OpenAIModel` uses it."""

    def __init__(self, litellm: Any, model: str, environ: Mapping[str, str]) -> None:
        self._litellm = litellm
        try:
            provider = str(litellm.get_llm_provider(model=model)[1])
        except litellm.exceptions.BadRequestError:  # the request says it
            provider = model.partition("/")[0]
        self.api_key = environ.get(key_variable(provider))
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self._create))

    async def _create(self, **parameters: Any) -> Any:
        key = {"api_key": self.api_key} if self.api_key else {}
        completion = await self._litellm.acompletion(**parameters, **key, max_retries=0)
        return aclosing(completion) if parameters.get("stream") else completion

    async def close(self) -> None:
        await self._litellm.close_litellm_async_clients()
