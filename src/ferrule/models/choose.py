"""Which model to use, from a word or from the environment."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from typing import Any

from ferrule.errors import SetupError
from ferrule.models.anthropic_model import AnthropicModel
from ferrule.models.model import Model
from ferrule.models.openai_model import OpenAIModel
from ferrule.models.patience import PatientModel
from ferrule.names import did_you_mean

DEFAULT_OPENAI_MODEL = "gpt-5.4-mini"
DEFAULT_ANTHROPIC_MODEL = "claude-sonnet-5-5"


def choose_model(spec: str | None = None, environ: Mapping[str, str] | None = None) -> Model:
    """`openai:gpt-5.4`, `anthropic:claude-opus-5-5`, `local`, `local:/path/to/model.gguf` or `offline`.

    Without a spec: `FERRULE_MODEL` if it is one, else what the environment has a key or a base URL for, else
    `offline`. Models of the network come with a time-out and further attempts (`PatientModel`).
    """
    environ = os.environ if environ is None else environ
    kind, model = read_spec(spec, environ)
    return _KINDS[kind](model, environ)


def read_spec(spec: str | None, environ: Mapping[str, str]) -> tuple[str, str | None]:
    """The kind of model that is meant and the name behind the colon, without making it."""
    named = environ.get("FERRULE_MODEL", "").strip()
    if spec is None:
        spec = named if named.partition(":")[0] in _KINDS else _by_environment(environ)
    kind, colon, model = spec.strip().partition(":")
    if kind not in _KINDS:
        raise SetupError(
            f"No model is called {spec!r}.{did_you_mean(kind, _KINDS)} "
            f"Write 'openai:{spec}', 'anthropic:{spec}', 'local', 'local:/path/to/model.gguf' or 'offline'."
        )
    if colon and not model:
        raise SetupError(f"{spec!r} names no model behind the colon. Write 'openai:gpt-5.4-mini', for example.")
    return kind, model or None


def _by_environment(environ: Mapping[str, str]) -> str:
    if environ.get("OPENAI_API_KEY") or environ.get("OPENAI_BASE_URL"):
        return "openai"
    return "anthropic" if environ.get("ANTHROPIC_API_KEY") else "offline"


def _openai(model: str | None, environ: Mapping[str, str]) -> Model:
    base_url, api_key = environ.get("OPENAI_BASE_URL", ""), environ.get("OPENAI_API_KEY", "")
    model = model or _plain_name(environ) or environ.get("OPENAI_MODEL")
    if not model and base_url:
        raise SetupError(f"Which model of {base_url} is meant? Set FERRULE_MODEL, or write 'openai:<its name>'.")
    return PatientModel(OpenAIModel(model or DEFAULT_OPENAI_MODEL, base_url=base_url, api_key=api_key))


def _anthropic(model: str | None, environ: Mapping[str, str]) -> Model:
    name = model or _plain_name(environ) or DEFAULT_ANTHROPIC_MODEL
    api_key = environ.get("ANTHROPIC_API_KEY") or environ.get("ANTHROPIC_AUTH_TOKEN")
    return PatientModel(AnthropicModel(name, base_url=environ.get("ANTHROPIC_BASE_URL") or None, api_key=api_key))


def _plain_name(environ: Mapping[str, str]) -> str | None:
    """`FERRULE_MODEL` where it is only the name of a model, and somebody else says whose."""
    named = environ.get("FERRULE_MODEL", "").strip()
    return None if not named or named.partition(":")[0] in _KINDS else named


def _local(model: str | None, environ: Mapping[str, str]) -> Model:
    local: Any = importlib.import_module("ferrule.models.local")
    chosen: Model = local.LocalModel() if model is None else local.LocalModel(model)
    return chosen


def _offline(model: str | None, environ: Mapping[str, str]) -> Model:
    if model is not None:
        raise SetupError(f"There is one offline model only: write 'offline', not 'offline:{model}'.")
    chosen: Model = importlib.import_module("ferrule.models.offline").OfflineModel()
    return chosen


_KINDS: dict[str, Callable[[str | None, Mapping[str, str]], Model]] = {
    "openai": _openai,
    "anthropic": _anthropic,
    "local": _local,
    "offline": _offline,
}
