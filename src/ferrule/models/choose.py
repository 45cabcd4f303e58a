"""Chooses a model by a spec such as `openai:gpt-5.4`, or by the environment, stored keys and servers on this machine.

Packages add providers through the entry-point group `ferrule.models`: an entry `prefix = "package.module:make_model"`
is used for specs `prefix:name` when the prefix is not built in. It is called with the name (None without a colon) and
the environment, and returns the model.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import TypeAlias

from ferrule.core.model import Model
from ferrule.core.names import did_you_mean
from ferrule.errors import SetupError, error_text
from ferrule.models.anthropic import AnthropicModel
from ferrule.models.keys import EnvironmentWithKeys, key_variable, model_environment
from ferrule.models.openai import OpenAIModel
from ferrule.models.retry import RetryingModel
from ferrule.models.servers import LOCAL_SERVERS, LocalServer, ServerState, find_servers

DEFAULT_OPENAI_MODEL = "gpt-5.4-mini"
DEFAULT_ANTHROPIC_MODEL = "claude-sonnet-5-5"
ENTRY_POINT_GROUP = "ferrule.models"

ModelFactory: TypeAlias = Callable[[str | None, Mapping[str, str]], Model]


# Built-in providers


def _make_openai_model(name: str | None, environ: Mapping[str, str]) -> Model:
    base_url, api_key = environ.get("OPENAI_BASE_URL", ""), environ.get("OPENAI_API_KEY", "")
    name = name or _name_from_environment(environ) or environ.get("OPENAI_MODEL")
    if not name and base_url:
        raise SetupError(f"No model of {base_url} is chosen. Set FERRULE_MODEL, or write 'openai:<its name>'.")
    return RetryingModel(OpenAIModel(name or DEFAULT_OPENAI_MODEL, base_url=base_url, api_key=api_key))


def _make_anthropic_model(name: str | None, environ: Mapping[str, str]) -> Model:
    name = name or _name_from_environment(environ) or DEFAULT_ANTHROPIC_MODEL
    api_key = environ.get("ANTHROPIC_API_KEY") or environ.get("ANTHROPIC_AUTH_TOKEN")
    return RetryingModel(AnthropicModel(name, base_url=environ.get("ANTHROPIC_BASE_URL") or None, api_key=api_key))


# The offline model is imported when it is chosen: users of a network model do not need it.


def _make_offline_model(name: str | None, environ: Mapping[str, str]) -> Model:
    if name is not None:
        raise SetupError(f"There is only one offline model: write 'offline', not 'offline:{name}'.")
    model: Model = importlib.import_module("ferrule.models.offline").OfflineModel()
    return model


def _make_server_model(server: LocalServer, name: str | None, environ: Mapping[str, str]) -> Model:
    """Return a model of a server on this machine. The server is asked for its models only if none is named."""
    if name is None:
        [state] = find_servers(environ, [server.prefix])
        if state.problem:
            raise SetupError(
                f"{server.title} cannot be used: {state.problem}. Start it with `{server.start}`, or set "
                f"{server.variable} to its address."
            )
        name = state.models[0]
    key = environ.get(key_variable(server.prefix), "")
    base_url = f"{server.url(environ)}/v1"
    return RetryingModel(OpenAIModel(name, base_url=base_url, api_key=key, provider=server.prefix))


def _make_litellm_model(name: str | None, environ: Mapping[str, str]) -> Model:
    if name is None:
        raise SetupError("'litellm' needs the name of a model. Write 'litellm:groq/llama-4-scout', for example.")
    model: Model = importlib.import_module("ferrule.models.litellm").LiteLLMModel(name, environ=environ)
    return RetryingModel(model)


_PROVIDERS: dict[str, ModelFactory] = {
    "openai": _make_openai_model,
    "anthropic": _make_anthropic_model,
    **{server.prefix: partial(_make_server_model, server) for server in LOCAL_SERVERS.values()},
    "litellm": _make_litellm_model,
    "offline": _make_offline_model,
}


KEYED_PROVIDERS = {
    "openai": ("OPENAI_API_KEY", "OPENAI_BASE_URL"),
    "anthropic": ("ANTHROPIC_API_KEY",),
}
"""The providers that need a key, and the environment variables that choose them when no model is named."""


# Choosing


def choose_model(spec: Model | str | None = None, environ: Mapping[str, str] | None = None) -> Model:
    """Return the model of a name. A model of a network API gets a timeout and retries.

    `openai:gpt-5.4`, `anthropic:claude-opus-5-5`, `ollama:qwen3`, `litellm:groq/llama-4-scout`, `offline`, or
    `prefix:name` of a provider that an installed package adds.

    Without a spec: `FERRULE_MODEL` if it is one, else the provider for which there is a key or a base URL, else the
    first model of a server on this machine (or the one that `FERRULE_MODEL` names), else `offline`. An `environ` of
    your own decides alone: neither stored keys nor servers are looked for then.
    """
    if spec is not None and not isinstance(spec, str):
        if not callable(getattr(spec, "generate", None)):
            raise SetupError(f"{spec!r} is not a model. Give its name (openai:gpt-5.4), or an object with `generate`.")
        if not isinstance(getattr(spec, "name", None), str):
            raise SetupError(f"The model {spec!r} has no name: give it the attribute `name`, a text.")
        return RetryingModel(spec) if isinstance(spec, (OpenAIModel, AnthropicModel)) else spec
    environ = model_environment(environ)
    provider, name = parse_model_spec(find_default(environ).spec if spec is None else spec, environ)
    make_model = _PROVIDERS.get(provider)
    return make_model(name, environ) if make_model is not None else _make_plugin_model(provider, name, environ)


def parse_model_spec(spec: str | None, environ: Mapping[str, str]) -> tuple[str, str | None]:
    """Return the provider and the name after the colon, without creating the model."""
    if spec is None:
        spec = find_default(environ, servers=()).spec
    provider, colon, name = spec.strip().partition(":")
    if provider not in _PROVIDERS and not _find_plugins(provider):
        name = name or spec.strip()
        raise SetupError(
            f"Unknown model {spec!r}.{did_you_mean(provider, _PROVIDERS)} "
            f"Write 'openai:{name}', 'anthropic:{name}', 'ollama:{name}', 'litellm:{name}', 'offline', or the prefix "
            "of a provider that an installed package adds. See what is usable: ferrule models"
        )
    if colon and not name:
        raise SetupError(f"{spec!r} has no model name after the colon. Write 'openai:gpt-5.4-mini', for example.")
    return provider, name or None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChoice:
    """The model that answers when none is named."""

    spec: str
    reason: str


def find_default(environ: Mapping[str, str], servers: Sequence[ServerState] | None = None) -> ModelChoice:
    """Return the model that answers when none is named, and why.

    `servers` are the servers on this machine; None: they are asked, unless the environment is one's own.
    """
    default = environ.get("FERRULE_MODEL", "").strip()
    if _has_provider(default):
        return ModelChoice(spec=default, reason="FERRULE_MODEL is set")
    for provider, variables in KEYED_PROVIDERS.items():
        for variable in variables:
            if environ.get(variable):
                is_stored = isinstance(environ, EnvironmentWithKeys) and variable in environ.stored_variables
                return ModelChoice(spec=provider, reason=f"{variable} is {'stored' if is_stored else 'set'}")
    if servers is None:
        is_off = environ.get("FERRULE_LOCAL_SERVERS", "").casefold() in ("0", "false", "no", "off")
        servers = find_servers(environ) if isinstance(environ, EnvironmentWithKeys) and not is_off else ()
    for state in servers:
        name = default or next(iter(state.models), "")
        if name and {name, f"{name}:latest"} & {*state.models}:
            reason = f"{state.server.title} runs at {state.url}, and there is no key"
            return ModelChoice(spec=f"{state.server.prefix}:{name}", reason=reason)
    if default:  # nothing here has a model of this name: better an error than the answer of another model
        return ModelChoice(spec=default, reason="FERRULE_MODEL is set")
    return ModelChoice(spec="offline", reason="there is no key and no model server on this machine")


def _has_provider(spec: str) -> bool:
    """Names of models may have a colon too: `qwen3:8b` names no provider."""
    provider, colon, _ = spec.partition(":")
    return provider in _PROVIDERS or bool(colon and _find_plugins(provider))


def _name_from_environment(environ: Mapping[str, str]) -> str | None:
    """`FERRULE_MODEL` if it is only the name of a model, without a provider."""
    name = environ.get("FERRULE_MODEL", "").strip()
    return None if not name or _has_provider(name) else name


# Providers that packages add


def _find_plugins(provider: str) -> list[EntryPoint]:
    return [*entry_points(group=ENTRY_POINT_GROUP, name=provider)] if provider else []


def list_plugins() -> dict[str, str]:
    """Return the prefixes that installed packages add, and what each is loaded from."""
    return {entry.name: entry.value for entry in entry_points(group=ENTRY_POINT_GROUP)}


def _make_plugin_model(provider: str, name: str | None, environ: Mapping[str, str]) -> Model:
    entry, *others = _find_plugins(provider)
    if any(other.value != entry.value for other in others):
        values = ", ".join(sorted({entry.value, *(other.value for other in others)}))
        raise SetupError(
            f"Several installed packages add the model provider {provider!r} ({values}). Remove all but one."
        )
    try:
        make_model: ModelFactory = entry.load()
    except Exception as error:
        raise SetupError(
            f"The model provider {provider!r} cannot be loaded from {entry.value!r}: {error_text(error)}"
        ) from error
    model = make_model(name, environ)
    if not callable(getattr(model, "generate", None)):
        raise SetupError(f"{entry.value!r}, the model provider {provider!r}, returned {model!r}, which is not a model.")
    return model
