"""`ask_model`: a model as a tool. The models are created on first use, and closed with the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ferrule.core.content import replace_surrogates
from ferrule.core.messages import Usage, system_message, user_message
from ferrule.core.model import can_reason
from ferrule.core.names import did_you_mean
from ferrule.core.secrets import Secrets
from ferrule.core.spec import ToolCategory
from ferrule.errors import (
    ExecutionFailed,
    ModelError,
    ModelRefused,
    ModelUnavailable,
    RequestTooLong,
    Retry,
    SetupError,
    Transient,
)
from ferrule.kinds.function.decorator import tool
from ferrule.models import Model, ModelReply, ModelRequest, RetryingModel, close_model
from ferrule.models.choose import ModelFactory, parse_model_spec
from ferrule.models.servers import LOCAL_SERVERS
from ferrule_tools._tool_setup import describe_missing_package, require_positive

NO_MODEL: Final = (
    "a model: set OPENAI_API_KEY or ANTHROPIC_API_KEY, or run `ferrule models key openai`; or OPENAI_BASE_URL and "
    "FERRULE_MODEL for a server of your own"
)
_KEY_VARIABLES: Final = ("${OPENAI_API_KEY}", "${ANTHROPIC_API_KEY}", "${ANTHROPIC_AUTH_TOKEN}")
_PACKAGES: Final = {
    **{name: name for name in ("openai", "anthropic", "litellm")},
    **dict.fromkeys(LOCAL_SERVERS, "openai"),
}


class ModelCache:
    """The models created so far, by their spec."""

    def __init__(self, factory: ModelFactory, environ: Mapping[str, str]) -> None:
        self._factory, self._environ = factory, environ
        self._models: dict[str | None, Model] = {}

    def get(self, spec: str | None) -> Model:
        if spec not in self._models:
            self._models[spec] = self._factory(spec, self._environ)
        return self._models[spec]

    @property
    def secrets(self) -> Secrets:
        """Return the keys of the environment: servers repeat an unknown key in their error messages."""
        return Secrets.from_template(_KEY_VARIABLES, self._environ)

    async def aclose(self) -> None:
        """Close all models. A model that is used again afterwards is created anew."""
        models, self._models = self._models, {}
        for model in models.values():
            await close_model(model)


def describe_missing_setup(spec: str | None, environ: Mapping[str, str]) -> str:
    """Return what must be set up before a model can be used; an empty text if nothing. The model is not created."""
    try:
        provider, name = parse_model_spec(spec, environ)
    except SetupError as error:
        return f"another model: {error}"
    if provider == "offline":
        return NO_MODEL
    package = _PACKAGES.get(provider)  # None: the provider comes from an installed plugin
    if package is not None and (missing := describe_missing_package(package, package)):
        return missing
    if provider != "openai":
        return ""
    if not (environ.get("OPENAI_API_KEY") or environ.get("OPENAI_BASE_URL")):
        return "the variable OPENAI_API_KEY, or OPENAI_BASE_URL for a server that needs no key"
    is_named = name or environ.get("FERRULE_MODEL") or environ.get("OPENAI_MODEL")
    if environ.get("OPENAI_BASE_URL") and not is_named:
        return "the name of a model at OPENAI_BASE_URL: set FERRULE_MODEL"
    return ""


def check_model_spec(spec: str | None) -> None:
    if spec is not None:
        parse_model_spec(spec, {})


async def request_reply(model: Model, prompt: str, *, system: str = "", max_tokens: int | None = None) -> ModelReply:
    """Send one prompt to a model; raise `ModelError` without a reply."""
    if not can_reason(model):
        raise ModelRefused(f"The model {model.name!r} can only use tools, and not answer. Set up {NO_MODEL}.")
    messages = [system_message(system)] if system else []
    request = ModelRequest(messages=[*messages, user_message(prompt)], max_tokens=max_tokens)
    reply = await model.generate(request)
    if not reply.text.strip():
        raise ModelRefused(f"The model {model.name!r} {_explain_empty_reply(reply)}")
    if reply.finish_reason == "refused":
        raise ModelRefused(f"The model {model.name!r} declines to answer: {reply.text.strip()[:500]}")
    return reply


def _explain_empty_reply(reply: ModelReply) -> str:
    if reply.tool_calls:
        name = reply.tool_calls[0].name
        return f"asks for the tool {name!r} instead of answering, but has no tools here. Change the prompt."
    if reply.finish_reason == "length":
        return "reached max_tokens before it gave an answer. Ask for less, or raise max_tokens in the configuration."
    return "gave an empty answer. Change the prompt." if reply.finish_reason != "refused" else "declines to answer."


def usage_output(usage: Usage) -> dict[str, Any]:
    """Return requests and tokens for the tool's output."""
    output = {"requests": usage.requests, "input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
    return {**output, "cached_tokens": usage.cached_tokens} if usage.cached_tokens else output


# ---- the tool


@dataclass(frozen=True, slots=True, kw_only=True)
class AskModelConfig:
    """The section `[tools.ask_model]`: which models can be asked, and how much."""

    model: str | None = None
    """`openai:gpt-5.4-mini`, `anthropic:…`, `ollama:…`; None: the environment determines it."""
    models: dict[str, str] = field(default_factory=dict)
    """Further models that the caller may choose by name: `fast = "openai:gpt-5.4-mini"`."""
    max_tokens: int = 4_096
    """The most tokens in an answer."""
    max_prompt: int = 100_000
    """Characters of a prompt, with its system text."""
    timeout: float = 120.0
    """Seconds an answer may take."""

    def __post_init__(self) -> None:
        check_model_spec(self.model)
        for name, spec in self.models.items():
            if not name.strip():
                raise SetupError(f"models: {spec!r} needs a name")
            check_model_spec(spec)
        require_positive(max_tokens=self.max_tokens, max_prompt=self.max_prompt, timeout=self.timeout)


class ModelAsker:
    def __init__(self, config: AskModelConfig, models: ModelCache) -> None:
        self._config, self._models = config, models

    @tool(
        category=ToolCategory.AI,
        tags=["ai", "model", "llm", "ask", "generate", "text", "模型", "提问", "生成"],
        read_only=True,
        examples=[
            {"prompt": "Translate into French: Where is the station?"},
            {"prompt": "把这句话改写得更正式：明天见。", "system": "你是一位编辑，只给出结果。"},
        ],
    )
    async def ask_model(self, prompt: str, system: str | None = None, model: str | None = None) -> dict[str, Any]:
        """Ask a language model: to write, rewrite, translate, classify or judge a text. 向语言模型提问。

        It knows nothing but what the prompt says, remembers nothing, and can use no tools.

        Args:
            prompt: everything it has to know, and what it should do
            system: who it is and how it answers
            model: which model to ask
        """
        prompt, system = replace_surrogates(prompt), replace_surrogates(system or "")
        if not prompt.strip():
            raise Retry("The prompt is empty: say what to ask the model.")
        if (length := len(prompt) + len(system)) > self._config.max_prompt:
            raise Retry(
                f"The prompt has {length:,} characters; the limit is {self._config.max_prompt:,}. Send less of it, or "
                "summarize it first."
            )
        with self._models.secrets.hide_in_errors():
            chosen = self._choose_model(model)
            # Without the model's own retries: the engine retries, within the timeout of the call.
            plain = chosen.model if isinstance(chosen, RetryingModel) else chosen
            try:
                reply = await request_reply(plain, prompt, system=system, max_tokens=self._config.max_tokens)
            except ModelUnavailable as error:
                wait = {} if error.retry_after is None else {"retry_after": error.retry_after}
                raise Transient(str(error), **wait) from error
            except RequestTooLong as error:
                raise Retry(f"{error} Send a shorter prompt.") from error
            except ModelError as error:
                raise ExecutionFailed(str(error)) from error
            except SetupError as error:  # its package or its weights are missing
                raise ExecutionFailed(f"The model {chosen.name!r} cannot be asked: {error}") from error
        output = {"answer": reply.text.strip(), "model": chosen.name, "usage": usage_output(reply.usage)}
        return {**output, "cut": True} if reply.finish_reason == "length" else output

    def _choose_model(self, name: str | None) -> Model:
        specs = self._config.models
        if name is not None and name not in specs:
            listed = f" The names are: {', '.join(specs)}." if specs else ""
            hint = did_you_mean(name, specs)
            raise Retry(f"There is no model {name!r} to choose.{hint}{listed} Leave it out for the default one.")
        try:
            return self._models.get(self._config.model if name is None else specs[name])
        except SetupError as error:
            raise ExecutionFailed(f"The model cannot be created: {error}") from error
