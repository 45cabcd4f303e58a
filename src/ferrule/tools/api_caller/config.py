"""What `[tools.api_caller]` in `ferrule.toml` says: the APIs that may be called, by name."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from ferrule.errors import SetupError
from ferrule.executors.http.guarded_client import fault_of_header
from ferrule.executors.http.origins import is_base_address
from ferrule.executors.variables import variables_in

METHODS: Final = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE")
READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing."""

_VARIABLE: Final = re.compile(r"\$\{[^}]*\}")
_WITH_DEFAULT: Final = re.compile(r"\$\{\w+:-[^}]*\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiConfig:
    """One API. `${VAR}` in its texts is read from the environment with each call."""

    base_url: str = ""
    """All calls go to addresses below this one."""
    description: str = ""
    """What it is for, in words for a model."""
    headers: dict[str, str] = field(default_factory=dict)
    """Sent with each call: `Authorization = "Bearer ${GITHUB_TOKEN}"`."""
    query: dict[str, str] = field(default_factory=dict)
    """Added to the query of each call: `key = "${WEATHER_KEY}"`."""
    methods: list[str] = field(default_factory=lambda: ["GET"])
    """Those that may be used."""
    ask_before: list[str] = field(default_factory=lambda: ["DELETE"])
    """Methods that a person must agree to each time."""
    timeout: float = 30.0
    """Seconds for a call, with all its tries."""
    max_bytes: int = 5_000_000
    """The largest answer that is read."""

    def __post_init__(self) -> None:
        _check_base(self.base_url)
        for name in ("methods", "ask_before"):
            said = [method.upper() for method in getattr(self, name)]
            for method in said:
                if method not in METHODS:
                    raise SetupError(f"{name} cannot contain {method!r}: use some of {', '.join(METHODS)}")
            object.__setattr__(self, name, said)
        for name in self.headers:
            if fault := fault_of_header(name):
                raise SetupError(f"headers: {fault}")
        if not self.methods:
            raise SetupError('methods is empty: write methods = ["GET"]')
        if not self.timeout > 0 or self.max_bytes < 1:
            raise SetupError(f"timeout and max_bytes must be more than 0, not {self.timeout!r} and {self.max_bytes!r}")

    @property
    def variables(self) -> list[str]:
        """The environment variables it cannot do without."""
        texts = [self.base_url, *self.headers.values(), *self.query.values()]
        return list(dict.fromkeys(name for text in texts for name in variables_in(_WITH_DEFAULT.sub("", text))))


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiCallerConfig:
    """The APIs that `api_caller` may call."""

    apis: dict[str, ApiConfig] = field(default_factory=dict)


def _check_base(base_url: str) -> None:
    url = _VARIABLE.sub("x", base_url.replace("${", "https://${", 1) if base_url.startswith("${") else base_url)
    if not is_base_address(url):
        raise SetupError(f"base_url must be an address such as https://api.example.com/v1, not {base_url!r}")
    if "?" in url or "#" in url:
        raise SetupError(f"base_url cannot have a query: {base_url!r}. Write query = {{ … }} beside it")
