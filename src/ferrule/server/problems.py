"""Errors of the HTTP API, as RFC 9457 problems."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match

from ferrule.core.content import encode_json
from ferrule.errors import FerruleError, LockHeld, Rejected, RunInProgress, RunInterrupted, SetupError, StoreError

logger = logging.getLogger("ferrule.server")

OPENAI_PATHS: Final = ("/v1/chat/completions", "/v1/responses", "/v1/models")
PROBLEM_TYPE: Final = "application/problem+json"
_METHODS: Final = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")


class Problem(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, detail: str, *, headers: Mapping[str, str] | None = None, **members: Any) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers, self.members = status, detail, headers, members

    def to_response(self, path: str = "") -> Response:
        """Make the response to a request for a path. Clients of OpenAI's API find the error in their format too."""
        title = HTTPStatus(self.status).phrase
        content = {**self.members, "type": "about:blank", "title": title, "status": self.status, "detail": self.detail}
        if path.startswith(OPENAI_PATHS):
            kind = "invalid_request_error" if self.status < 500 else "server_error"
            error = {"message": self.detail, "type": kind, "param": content.get("param")}
            content["error"] = {**error, "code": content.get("code")}
        return json_response(content, self.status, headers=self.headers, media_type=PROBLEM_TYPE)


def encode_body(content: Any) -> bytes:
    """Encode JSON. What orjson cannot encode, such as a number of more than 64 bits, is converted first."""
    try:
        return orjson.dumps(content)
    except TypeError:
        return encode_json(content)


def json_response(
    content: Any, status: int = 200, *, headers: Mapping[str, str] | None = None, media_type: str = "application/json"
) -> Response:
    """Make a response with JSON."""
    return Response(
        encode_body(content), status, headers=None if headers is None else dict(headers), media_type=media_type
    )


def problem_of_error(error: Exception) -> Problem:
    """Return the problem for an error that a handler raised."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, HTTPException):
        return Problem(error.status_code, str(error.detail), headers=error.headers)
    if isinstance(error, RunInterrupted):  # calls were made: after a refusal, the request could be repeated
        return Problem(503, str(error))
    if isinstance(error, LockHeld | RunInProgress):
        return Problem(409, str(error))
    if isinstance(error, Rejected):
        return Problem(429, str(error), headers={"Retry-After": str(error.details.get("retry_after", 1))})
    if isinstance(error, StoreError):
        return Problem(503, f"The store is not available: {error}", headers={"Retry-After": "5"})
    if isinstance(error, SetupError | FerruleError):
        return Problem(400, str(error))
    return Problem(500, "The server failed to answer this request; its log says why.")


async def handle_error(request: Request, error: Exception) -> Response:
    """Answer an exception of a route."""
    problem = problem_of_error(error)
    if isinstance(error, HTTPException) and problem.detail in ("Not Found", "Method Not Allowed"):  # of the router
        problem = _describe_missing_route(request, problem.status)
    if problem.status == 500:
        logger.error("path=<%s> | the request failed", request.url.path, exc_info=error)
    return problem.to_response(request.url.path)


def _describe_missing_route(request: Request, status: int) -> Problem:
    path = request.url.path[:200]
    if status == 404:
        return Problem(404, f"There is nothing at {path!r}. /openapi.json lists the paths of this server.")
    routes = request.app.router.routes  # each route knows only its own methods
    scopes = {method: {**request.scope, "method": method} for method in _METHODS}
    methods = ", ".join(n for n, scope in scopes.items() if any(r.matches(scope)[0] is Match.FULL for r in routes))
    return Problem(
        405, f"{path!r} cannot be used with {request.method}, only with {methods}.", headers={"Allow": methods}
    )


async def handle_invalid_request(request: Request, error: Any) -> Response:
    """Answer a validation error of FastAPI: which part of the request is wrong, without repeating its value."""
    errors = [{"at": ".".join(map(str, each["loc"])), "message": each["msg"]} for each in error.errors()]
    detail = "; ".join(f"{each['at']}: {each['message']}" for each in errors[:5])
    return Problem(422, f"The request is not valid: {detail}.", errors=errors).to_response(request.url.path)
