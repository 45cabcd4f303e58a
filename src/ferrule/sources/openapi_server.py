"""Which server an operation is sent to.

The one the user names; else the first that the operation, its path or the document lists, its variables filled in. A
relative one starts where the document was fetched from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urljoin, urlsplit

from ferrule.executors.openapi.request import PLACEHOLDER
from ferrule.sources.openapi_document import OpenApiDocument, mappings_in, texts_in


class ServerChoice:
    """Finds the server of each operation."""

    def __init__(self, document: OpenApiDocument, server: str | None, variables: Mapping[str, str]) -> None:
        self._document, self._variables = document, variables
        self._named = None if server is None else self._named_by_user(server)

    def server_for(self, item: Mapping[str, Any], operation: Mapping[str, Any]) -> str:
        if self._named is not None:
            return self._named
        for owner in (operation, item):
            if servers := _servers(owner):
                return self._absolute(servers[0])
        return self._absolute(next(iter(self._listed()), {"url": "/"}))

    def _named_by_user(self, server: str) -> str:
        """A URL, or the description of one that the document lists."""
        for listed in self._listed():
            if server in (listed.get("description"), listed["url"]):
                return self._absolute(listed)
        if "://" not in server:
            known = ", ".join(repr(each.get("description") or each["url"]) for each in self._listed())
            raise self._document.error(f"there is no server {server!r}", f"give a URL, or one of: {known or 'none'}")
        return self._absolute({"url": server})

    def _listed(self) -> list[dict[str, Any]]:
        if not self._document.is_2:
            return _servers(self._document.value)
        value = self._document.value
        schemes = texts_in(value.get("schemes")) or ["https"]
        scheme = "https" if "https" in schemes else schemes[0]
        host, base = value.get("host"), str(value.get("basePath") or "/")
        return [{"url": f"{scheme}://{host}{base if base.startswith('/') else f'/{base}'}" if host else base}]

    def _absolute(self, server: Mapping[str, Any]) -> str:
        said = server.get("variables")
        variables = said if isinstance(said, dict) else {}
        url = PLACEHOLDER.sub(lambda match: self._variable(match[1], variables), server["url"])
        try:
            url = urljoin(self._document.url, url)
            parts = urlsplit(url)
        except ValueError as error:
            raise self._document.error(f"the server {url!r} is no URL: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise self._document.error(
                f"the server {url!r} has no host", "say which: server='https://api.example.com/v1'"
            )
        if parts.username or parts.password:
            raise self._document.error("the server's URL holds a password", "use a security scheme and its variable")
        return url.partition("#")[0].partition("?")[0].rstrip("/")

    def _variable(self, name: str, said: Mapping[str, Any]) -> str:
        described = said.get(name)
        described = described if isinstance(described, dict) else {}
        said_values = described.get("enum")
        allowed = list(map(str, said_values)) if isinstance(said_values, list) else []
        value = self._variables.get(name, described.get("default", next(iter(allowed), None)))
        if value is None:
            raise self._document.error(f"the server's variable {name!r} has no value", f"say variables={{{name!r}: …}}")
        if name in self._variables and allowed and value not in allowed:
            raise self._document.error(
                f"the server's variable {name!r} cannot be {value!r}", f"use {', '.join(allowed)}"
            )
        return str(value)


def _servers(owner: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [each for each in mappings_in(owner.get("servers")) if isinstance(each.get("url"), str)]
