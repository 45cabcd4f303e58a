"""The models behind the tools: created on first use, closed with the engine; and requests to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from ferrule.core.messages import Usage, system_message, user_message
from ferrule.core.model import can_reason
from ferrule.core.secrets import Secrets
from ferrule.errors import (
    CallError,
    ExecutionFailed,
    ModelError,
    ModelRefused,
    ModelUnavailable,
    RequestTooLong,
    Retry,
    SetupError,
    Transient,
)
from ferrule.models import Model, ModelReply, ModelRequest, close_model
from ferrule.models.choose import parse_model_spec
from ferrule.models.servers import LOCAL_SERVERS
from ferrule_tools._tool_setup import describe_missing_package

NO_MODEL: Final = (
    "a model: set OPENAI_API_KEY or ANTHROPIC_API_KEY, or run `ferrule models key openai`; or OPENAI_BASE_URL and "
    "FERRULE_MODEL for a server of your own"
)
_KEY_VARIABLES: Final = ("${OPENAI_API_KEY}", "${ANTHROPIC_API_KEY}", "${ANTHROPIC_AUTH_TOKEN}")
_PACKAGES: Final = {
    **{name: name for name in ("openai", "anthropic", "litellm")},
    **dict.fromkeys(LOCAL_SERVERS, "openai"),
}


class ModelFactory(Protocol):
    """Creates the model of a spec in the configuration; None: the model that the environment determines."""

    def __call__(self, spec: str | None, environ: Mapping[str, str], /) -> Model: ...


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
        """The keys of the environment: servers repeat an unknown key in their error messages."""
        return Secrets.from_template(_KEY_VARIABLES, self._environ)

    async def aclose(self) -> None:
        """Close all models. A model that is used again afterwards is created anew."""
        models, self._models = self._models, {}
        for model in models.values():
            await close_model(model)


def describe_missing_setup(spec: str | None, environ: Mapping[str, str]) -> str:
    """What must be set up before a model can be used, as text; empty if nothing. The model is not created."""
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


def check_positive(**amounts: Any) -> None:
    for name, value in amounts.items():
        if not value > 0:
            raise SetupError(f"{name} must be more than 0, not {value!r}")


async def request_reply(model: Model, prompt: str, *, system: str = "", max_tokens: int | None = None) -> ModelReply:
    """Send one prompt to a model; raises `ModelError` if there is no reply."""
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


def convert_model_error(error: ModelError) -> CallError:
    """Convert the error of a model into the error of the call."""
    if isinstance(error, ModelUnavailable):
        wait = {} if error.retry_after is None else {"retry_after": error.retry_after}
        return Transient(str(error), **wait)
    if isinstance(error, RequestTooLong):
        return Retry(f"{error} Send a shorter prompt.")
    return ExecutionFailed(str(error))


def usage_output(usage: Usage) -> dict[str, Any]:
    """Requests and tokens, for the tool's output."""
    output = {"requests": usage.requests, "input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
    return {**output, "cached_tokens": usage.cached_tokens} if usage.cached_tokens else output
