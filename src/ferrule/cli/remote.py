"""The client of a server elsewhere: the HTTP API of `ferrule serve`, with the token in the variable FERRULE_TOKEN."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

import httpx
import typer

from ferrule.agent.answer import AgentState
from ferrule.cli import printing
from ferrule.cli.client import AskOptions, CallOptions, CallOutcome
from ferrule.cli.session import EXIT_STOPPED, EXIT_WAITING, fail
from ferrule.cli.terminal import echo, print_error
from ferrule.core.call import ToolExecutionResult
from ferrule.policy.approvals import Approval, ApprovalRequest

TOKEN_VARIABLE: Final = "FERRULE_TOKEN"
EXIT_UNREACHABLE: Final = 10
_STREAM_TIMEOUT: Final = httpx.Timeout(60.0, read=None)
_REFUSALS_OF_CALLS: Final = (403, 404, 422, 428, 429)


class RemoteClient:
    """The HTTP API of a server, as commands use it."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        token = os.environ.get(TOKEN_VARIABLE, "").strip()
        if not (token.isascii() and token.isprintable()):
            fail(f"{TOKEN_VARIABLE} is not a token: it has characters that no token has.")
        headers = {} if not token else {"Authorization": f"Bearer {token}"}
        self._client = httpx.Client(base_url=self._url, headers=headers, timeout=_STREAM_TIMEOUT)

    def call(self, name: str, values: dict[str, Any], options: CallOptions) -> CallOutcome:
        body = {"arguments": values, "action": options.action, "timeout": options.timeout}
        body["approval_id"] = options.approval
        content = self._post(f"/v1/tools/{quote(name, safe='')}/call", body, accept=_REFUSALS_OF_CALLS)
        if "is_success" not in content:  # it is about the request, not about the call
            fail(content["detail"])
        names = ("is_success", "tool_name", "output", "error", "error_type", "execution_time", "metadata", "call_id")
        return CallOutcome(ToolExecutionResult(**{name: content[name] for name in names}), content)

    def ask(self, question: str | None, options: AskOptions) -> None:
        if options.resume is not None:
            path = f"/v1/runs/{quote(options.resume, safe='')}/resume"
            events = self._stream(path, {"answer": question, "approve": options.approve})
        elif question:
            body = {"question": question, "strategy": options.strategy, "conversation_id": options.conversation}
            events = self._stream("/v1/ask", body)
        else:
            fail('No question given. Try: ferrule ask "what is 2 + 2?"')
        for name, data in events:
            if name == "error":
                fail(data["detail"])
            if name == "call" and not (options.as_json or options.quiet):
                print_error(f"· {data['name']} {json.dumps(data['arguments'], ensure_ascii=False)[:100]}")
            if name == "answer":
                _print_answer(data, as_json=options.as_json)
                return
        # The token was revoked, or the server ends.
        fail("The server ended the stream before the answer. `runs list` shows what became of it.", code=EXIT_STOPPED)

    def list_tools(self) -> list[dict[str, Any]]:
        return [{**tool, "unavailable": tool["needs"]} for tool in self._get("/v1/tools")["tools"]]

    def search_tools(self, text: str) -> list[dict[str, Any]]:
        tools: list[dict[str, Any]] = self._get("/v1/tools", query=text, limit=20)["tools"]
        return tools

    def show_tool(self, name: str, *, as_json: bool) -> None:
        """Print a tool as JSON in any case."""
        printing.print_json(self._get(f"/v1/tools/{quote(name, safe='')}"))

    def list_calls(self, limit: int, **filters: Any) -> list[dict[str, Any]]:
        """List the records of calls. Takes the filters of the store's query that the API has too."""
        since = filters.pop("since", None)
        filters["since"] = since.isoformat() if isinstance(since, datetime) else None
        filters["tool"] = filters.pop("tool_name", None)
        calls: list[dict[str, Any]] = self._get("/v1/calls", limit=limit, **filters)["calls"]
        return calls

    def list_runs(self, limit: int) -> list[dict[str, Any]]:
        runs: list[dict[str, Any]] = self._get("/v1/runs", limit=limit)["runs"]
        return runs

    def find_run(self, run_id: str) -> dict[str, Any]:
        run: dict[str, Any] = self._get(f"/v1/runs/{quote(run_id, safe='')}")
        return run

    def list_approvals(self, state: Any, limit: int) -> tuple[list[ApprovalRequest], int]:
        if state is None:
            fail("A server lists one state at a time: leave out --state all.")
        requests = list(map(_read_request, self._get("/v1/approvals", state=state, limit=limit)["approvals"]))
        return requests, len(requests)

    def find_approval(self, approval_id: str) -> ApprovalRequest:
        return _read_request(self._get(f"/v1/approvals/{quote(approval_id, safe='')}"))

    def decide(self, approval_id: str, approval: Approval) -> ApprovalRequest:
        body = {"allowed": approval.allowed, "reason": approval.reason, "arguments": approval.arguments}
        return _read_request(self._post(f"/v1/approvals/{quote(approval_id, safe='')}", body))

    # HTTP

    def _get(self, path: str, **params: Any) -> Any:
        values = {name: value for name, value in params.items() if value is not None}
        with self._explain_errors():
            return self._read(self._client.get(path, params=values))

    def _post(self, path: str, body: Any, *, accept: Sequence[int] = ()) -> Any:
        """Return the content of the response. An error ends the command, unless its status is accepted."""
        with self._explain_errors():
            return self._read(self._client.post(path, json=body), accept)

    def _stream(self, path: str, body: Any) -> Iterator[tuple[str, Any]]:
        """Yield the events of a response."""
        with self._explain_errors(), self._client.stream("POST", path, json={**body, "stream": True}) as response:
            if response.status_code != 200:
                response.read()
                self._read(response)
            name = ""
            for line in response.iter_lines():
                key, _, value = line.partition(": ")
                if key == "event":
                    name = value
                elif key == "data":
                    yield name, json.loads(value)

    @contextmanager
    def _explain_errors(self) -> Iterator[None]:
        try:
            yield
        except (httpx.UnsupportedProtocol, httpx.InvalidURL):
            fail(f"{self._url!r} is not the address of a server: write it as http://localhost:8321.")
        except httpx.TransportError as error:
            fail(f"{self._url} cannot be reached: {error}. Is `ferrule serve` running there?", code=EXIT_UNREACHABLE)

    def _read(self, response: httpx.Response, accept: Sequence[int] = ()) -> Any:
        try:
            content = response.json()
        except ValueError:
            content = None
        if not isinstance(content, dict):
            status = response.status_code
            fail(f"{self._url} is not a Ferrule server: it answered with {status}.", code=EXIT_UNREACHABLE)
        if not response.is_success and response.status_code not in accept:
            hint = f" Set {TOKEN_VARIABLE} to a token of it." if response.status_code == 401 else ""
            fail(f"{content.get('detail', response.status_code)}{hint}")
        return content


def _read_request(content: Mapping[str, Any]) -> ApprovalRequest:
    names = {field.name for field in fields(ApprovalRequest)}
    return ApprovalRequest(**{name: value for name, value in content.items() if name in names})


def _print_answer(answer: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        printing.print_json(answer)
    elif answer["state"] != AgentState.WAITING:
        echo(answer["answer"])
    else:
        for question in answer["questions"]:
            print_error(f'? {question["text"]}\n  Answer with: ferrule runs resume {answer["run_id"]} "your answer"')
        for request in answer["approvals"]:
            print_error(f"? {request['tool_id']} needs approval: {request['reason']}")
            print_error(f"  Decide with: ferrule approvals approve {request['approval_id']}   (or deny)")
            print_error(f"  The run then continues by itself: ferrule runs show {answer['run_id']}")
    if answer["state"] != AgentState.FINISHED:
        raise typer.Exit(EXIT_WAITING if answer["state"] == AgentState.WAITING else EXIT_STOPPED)
