"""Checks the JSON that the server answers with against its OpenAPI document."""

import re
from typing import Any

import httpx
import jsonschema_rs


class DocumentedResponses:
    """The schemas of successful responses, by method and path."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._schemas: list[tuple[str, re.Pattern[str], dict[str, Any]]] = []
        for path, operations in document["paths"].items():
            pattern = re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(path)))
            for method, operation in operations.items():
                for status, response in operation["responses"].items():
                    schema = response.get("content", {}).get("application/json", {}).get("schema")
                    if status.startswith("2") and schema:
                        whole = {**schema, "components": document["components"]}
                        self._schemas.append((method.upper(), pattern, whole))
        self._schemas.sort(key=lambda each: "[^/]" in each[1].pattern)  # a path without parameters first

    def check(self, response: httpx.Response) -> None:
        """Raise AssertionError for a response that is not as the document says. It must be read."""
        method, path = response.request.method, response.request.url.path
        if not response.is_success or not path.startswith(("/v1/", "/healthz", "/readyz")):
            return
        if response.headers.get("content-type") != "application/json":
            return
        schema = next(schema for each, pattern, schema in self._schemas if each == method and pattern.fullmatch(path))
        problems = [
            f"{each.instance_path}: {each.message}" for each in jsonschema_rs.iter_errors(schema, response.json())
        ]
        assert not problems, f"{method} {path}: {problems[:5]}"
