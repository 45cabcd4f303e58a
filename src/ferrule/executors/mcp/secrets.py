"""What a server is told in confidence: not to be found in what it says, nor in what is said about it.

Servers repeat what they were given, in error messages above all. Hidden are the values of headers, of variables and
options whose names say so (`API_KEY`, `--token`), and what is secret in an address. The value of `${PROJECT_FOLDER}` is
none: the results of a server of files are full of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from urllib.parse import parse_qsl, unquote, urlsplit

from ferrule.executors.mcp.config import McpServerConfig
from ferrule.executors.secrets import Secrets
from ferrule.executors.variables import variables_in
from ferrule.redaction.names import SECRET_NAMES, SecretNames


def secrets_of(config: McpServerConfig, environ: Mapping[str, str]) -> Secrets:
    """What must not show of a server whose variables are not filled in yet."""
    values = {*_variables(config, environ), *_values(config.expanded(environ))}
    known = {f"SECRET_{number}": value for number, value in enumerate(sorted(values))}
    return Secrets([f"${{{name}}}" for name in known], known)


def secret_places(config: McpServerConfig) -> list[str]:
    """The names of variables and headers that hold a secret as it is, without a `${VAR}`."""
    held = (*config.env.items(), *config.headers.items())
    return [name for name, text in held if _names().hides(name, text) and not variables_in(text)]


def _variables(config: McpServerConfig, environ: Mapping[str, str]) -> Iterator[str]:
    """The variables that are secret by their own names, and all those of headers."""
    written = config.with_plain_variables()
    texts = [written.command or "", *written.args, *written.env.values(), written.cwd or "", written.url or ""]
    for name in {name for text in texts for name in variables_in(text)}:
        if _names().is_secret(name):
            yield environ.get(name, "")
    for name in {name for text in written.headers.values() for name in variables_in(text)}:
        yield environ.get(name, "")


def _values(config: McpServerConfig) -> Iterator[str]:
    for name, text in config.env.items():
        if _names().hides(name, text):
            yield text
    for text in config.headers.values():
        yield from (text, *text.split())  # of `Bearer abc` the last word alone is as secret
    for argument, is_hidden in _names().hidden_items(config.args):
        option, _, value = argument.partition("=")
        if is_hidden:
            yield argument
        elif option.startswith("-") and _names().is_label(option.lstrip("-")):
            yield value
    if config.url is not None:
        yield from _in_address(config.url)


def _in_address(url: str) -> Iterator[str]:
    user_info, at, _ = urlsplit(url).netloc.rpartition("@")
    if at:
        user, _, password = user_info.partition(":")
        yield from (user_info, unquote(password or user))
    for _, value in parse_qsl(urlsplit(url).query):
        yield value


@cache
def _names() -> SecretNames:
    return SecretNames(SECRET_NAMES)
