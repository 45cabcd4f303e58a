"""What `[tools.ask_model]` and `[tools.summarize]` say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ferrule.errors import SetupError
from ferrule.models.choose import read_spec


@dataclass(frozen=True, slots=True, kw_only=True)
class AskModelConfig:
    """Which models can be asked, and how much."""

    model: str | None = None
    """`openai:gpt-5.4-mini`, `anthropic:…`, `local`; none: by the environment."""
    models: dict[str, str] = field(default_factory=dict)
    """Further ones that the caller may choose, by a name: `fast = "openai:gpt-5.4-mini"`."""
    max_tokens: int = 4_096
    """How long an answer may be."""
    max_prompt: int = 100_000
    """Characters of a prompt, with its system text."""
    timeout: float = 120.0
    """Seconds an answer may take."""

    def __post_init__(self) -> None:
        _check_model(self.model)
        for name, word in self.models.items():
            if not name.strip():
                raise SetupError(f"models: {word!r} needs a name to be chosen by")
            _check_model(word)
        _check_amounts(max_tokens=self.max_tokens, max_prompt=self.max_prompt, timeout=self.timeout)


@dataclass(frozen=True, slots=True, kw_only=True)
class SummarizeConfig:
    """How texts are summarised."""

    model: str | None = None
    """As in `[tools.ask_model]`; none: the one that is set there. `offline`: no model, even if there is one."""
    max_text: int = 500_000
    """Characters of a text."""
    part: int = 24_000
    """Characters that a model is given at once; a longer text is summarised in parts."""
    max_tokens: int = 4_096
    """How long what a model writes may be."""
    timeout: float = 120.0
    """Seconds a summary may take."""

    def __post_init__(self) -> None:
        _check_model(self.model)
        _check_amounts(max_text=self.max_text, max_tokens=self.max_tokens, timeout=self.timeout)
        if self.part < 1_000:
            raise SetupError(f"part must be at least 1000 characters, not {self.part!r}")


def _check_model(word: str | None) -> None:
    if word is not None:
        read_spec(word, {})


def _check_amounts(**amounts: Any) -> None:
    for name, value in amounts.items():
        if not value > 0:
            raise SetupError(f"{name} must be more than 0, not {value!r}")
