"""Secrets of the environment in the headers of a request whose address the caller chose.

A header may name a variable, `Bearer ${GITHUB_TOKEN}`, and is recorded like that. The configuration says which
variables may be named and where each may be sent: a caller who names any other gets it nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ferrule.errors import Refuse, Retry, SetupError
from ferrule.executors.http.guarded_client import TRAVELLING_HEADERS
from ferrule.executors.http.origins import origin_of
from ferrule.executors.secrets import Secrets
from ferrule.executors.variables import expand_variables, variables_in


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequestConfig:
    """What `http_request` may use."""

    secrets: dict[str, list[str]] = field(default_factory=dict)
    """Environment variables that headers may name as `${NAME}`, each with where it may be sent: `api.github.com`."""

    def __post_init__(self) -> None:
        for name, places in self.secrets.items():
            for place in places:
                if origin_of(place) is None:
                    raise SetupError(
                        f"secrets: {name} cannot be sent to {place!r}: write a host such as api.github.com, which is "
                        "reached by https, or an origin such as http://localhost:8080"
                    )


def fill_headers(
    headers: Mapping[str, str], url: str, allowed: Mapping[str, Sequence[str]], environ: Mapping[str, str]
) -> tuple[dict[str, str], Secrets]:
    """The headers with the secrets they name, and what must not show."""
    naming = {name: names for name, value in headers.items() if (names := variables_in(value))}
    for name, variables in naming.items():
        for variable in variables:
            _check(name, variable, url, allowed.get(variable, ()), environ)
    filled = {name: expand_variables(value, environ) if name in naming else value for name, value in headers.items()}
    return filled, Secrets([headers[name] for name in naming], environ)


def _check(header: str, variable: str, url: str, places: Sequence[str], environ: Mapping[str, str]) -> None:
    if (origin := origin_of(url)) is None or origin not in map(origin_of, places):
        raise Retry(
            f"the header {header!r} names the variable {variable!r}, which may not be sent there. A person can allow "
            f'it in ferrule.toml: [tools.http_request] secrets = {{ {variable} = ["{origin or "api.example.com"}"] }}'
        )
    if header.lower() in TRAVELLING_HEADERS:
        raise Retry(f"the header {header!r} goes on to other hosts with redirects: no secret can stand in it.")
    if not environ.get(variable):
        raise Refuse(f"the environment variable {variable!r} is not set: a person must set it.")
