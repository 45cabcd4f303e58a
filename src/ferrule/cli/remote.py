"""The commands for a server elsewhere: `ferrule --server URL ask|call|tools|calls|runs|approvals`.

They use the HTTP API of `ferrule serve`, with the token in the variable FERRULE_TOKEN.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Any, Final
from urllib.parse import quote

import httpx
import typer

from ferrule.agent.answer import AgentState
from ferrule.cli import printing
from ferrule.cli.app import COMMANDS, CommandGroup
from ferrule.cli.session import (
    ActionName,
    ApprovalOfCall,
    ArgumentPairs,
    ArgumentsAsJson,
    AsJson,
    CallTimeout,
    RunId,
    ToolName,
    exit_on_failure,
    fail,
    parse_arguments,
)
from ferrule.cli.terminal import echo, print_error
from ferrule.core.call import ToolExecutionResult
from ferrule.texts.shorten import first_sentence, single_line

TOKEN_VARIABLE: Final = "FERRULE_TOKEN"
EXIT_WAITING, EXIT_STOPPED, EXIT_UNREACHABLE = 8, 9, 10
_STREAM_TIMEOUT: Final = httpx.Timeout(60.0, read=None)


Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=1_000, help="Maximum number.")]


class _RemoteCommands(CommandGroup):
    """The commands for a server. A command that works on this machine alone is refused with a message."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in COMMANDS and args[0] not in self.commands:
            names = ", ".join(self.commands)
            fail(f"{args[0]!r} works without --server only. With it there are: {names}.")
        return super().resolve_command(ctx, args)


remote_app = typer.Typer(
    name="ferrule",
    cls=_RemoteCommands,
    help="Use the tools and the agent of a server elsewhere.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
tools_app = typer.Typer(help="List, show and search tools.", no_args_is_help=True)
runs_app = typer.Typer(help="List, show and resume runs.", no_args_is_help=True)
approvals_app = typer.Typer(help="List, show and decide about calls that wait for approval.", no_args_is_help=True)
for _name, _app in (("tools", tools_app), ("runs", runs_app), ("approvals", approvals_app)):
    remote_app.add_typer(_app, name=_name)


class RemoteServer:
    """The HTTP API of a server."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        token = os.environ.get(TOKEN_VARIABLE, "").strip()
        if not (token.isascii() and token.isprintable()):
            fail(f"{TOKEN_VARIABLE} is not a token: it has characters that no token has.")
        headers = {} if not token else {"Authorization": f"Bearer {token}"}
        self._client = httpx.Client(base_url=self.url, headers=headers, timeout=_STREAM_TIMEOUT)

    def get(self, path: str, **params: Any) -> Any:
        values = {name: value for name, value in params.items() if value is not None}
        with self._explain_errors():
            return self._read(self._client.get(path, params=values))

    def post(self, path: str, body: Any, *, accept: Sequence[int] = ()) -> Any:
        """Return the content of the response. An error ends the command, unless its status is accepted."""
        with self._explain_errors():
            return self._read(self._client.post(path, json=body), accept)

    def stream(self, path: str, body: Any) -> Iterator[tuple[str, Any]]:
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
            fail(f"{self.url!r} is not the address of a server: write it as http://localhost:8321.")
        except httpx.TransportError as error:
            fail(f"{self.url} cannot be reached: {error}. Is `ferrule serve` running there?", code=EXIT_UNREACHABLE)

    def _read(self, response: httpx.Response, accept: Sequence[int] = ()) -> Any:
        try:
            content = response.json()
        except ValueError:
            content = None
        if not isinstance(content, dict):
            fail(f"{self.url} is not a Ferrule server: it answered with {response.status_code}.", code=EXIT_UNREACHABLE)
        if not response.is_success and response.status_code not in accept:
            hint = f" Set {TOKEN_VARIABLE} to a token of it." if response.status_code == 401 else ""
            fail(f"{content.get('detail', response.status_code)}{hint}")
        return content


@remote_app.callback()
def set_server(
    context: typer.Context,
    server: Annotated[str, typer.Option("--server", help="The address, such as http://host:8321.")],
) -> None:
    context.obj = RemoteServer(server)


@remote_app.command()
def call(
    context: typer.Context,
    name: ToolName,
    arguments: ArgumentPairs = None,
    params: ArgumentsAsJson = None,
    action: ActionName = None,
    timeout: CallTimeout = None,
    approval: ApprovalOfCall = None,
    as_json: AsJson = False,
) -> None:
    """Call a tool."""
    values = parse_arguments(arguments or (), params)
    body = {"arguments": values, "action": action, "timeout": timeout}
    path = f"/v1/tools/{quote(name, safe='')}/call"
    content = context.obj.post(path, {**body, "approval_id": approval}, accept=(403, 404, 422, 428, 429))
    if "is_success" not in content:  # it is about the request, not about the call
        fail(content["detail"])
    fields = ("is_success", "tool_name", "output", "error", "error_type", "metadata", "call_id")
    result = ToolExecutionResult(**{field: content[field] for field in fields})
    printing.print_json(content) if as_json else printing.print_result(result)
    exit_on_failure(result)


@remote_app.command()
def ask(
    context: typer.Context,
    question: Annotated[str, typer.Argument(help="What you want to know or have done.")],
    strategy: Annotated[str | None, typer.Option("--strategy", "-s", help="plan, loop, direct or model.")] = None,
    conversation: Annotated[str | None, typer.Option("--conversation", help="Continue this conversation.")] = None,
    as_json: AsJson = False,
) -> None:
    """Ask a question, or have something done."""
    body = {"question": question, "strategy": strategy, "conversation_id": conversation}
    _follow_answer(context.obj.stream("/v1/ask", body), as_json=as_json)


def _follow_answer(events: Iterator[tuple[str, Any]], *, as_json: bool) -> None:
    """Print what happens, then the answer."""
    has_answer = False
    for name, data in events:
        if name == "error":
            fail(data["detail"])
        if name == "call" and not as_json:
            print_error(f"· {data['name']} {json.dumps(data['arguments'], ensure_ascii=False)[:100]}")
        if name == "answer":
            has_answer = True
            _print_answer(data, as_json=as_json)
    if not has_answer:  # the token was revoked meanwhile, or the server ends
        fail("The server ended the stream before the answer. `runs list` shows what became of it.", code=EXIT_STOPPED)


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


@tools_app.command("list")
def list_tools(context: typer.Context, as_json: AsJson = False) -> None:
    """List the tools that the token may call."""
    _print_tools(context.obj.get("/v1/tools")["tools"], as_json=as_json, empty="There are no tools for this token.")


@tools_app.command("search")
def search_tools(
    context: typer.Context,
    words: Annotated[list[str], typer.Argument(help="What the tool should be about.")],
    as_json: AsJson = False,
) -> None:
    """Find tools."""
    tools = context.obj.get("/v1/tools", query=" ".join(words), limit=20)["tools"]
    _print_tools(tools, as_json=as_json, empty=f"No tool matches {' '.join(words)!r}.")


@tools_app.command("show")
def show_tool(context: typer.Context, name: Annotated[str, typer.Argument(help="The tool.")]) -> None:
    """Show a tool with its parameters, as JSON."""
    printing.print_json(context.obj.get(f"/v1/tools/{quote(name, safe='')}"))


def _print_tools(tools: list[dict[str, Any]], *, as_json: bool, empty: str) -> None:
    if as_json:
        printing.print_json(tools)
        return
    rows = [
        (tool["tool_id"] + (" (not set up)" if tool["needs"] else ""), first_sentence(tool["description"]))
        + (tool["source"],)
        for tool in tools
    ]
    printing.print_table(("tool", "description", "source"), rows, empty=empty, cut=(1,))


@remote_app.command()
def calls(
    context: typer.Context,
    tool: Annotated[str | None, typer.Option("--tool", help="Only calls of this tool.")] = None,
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """Show the latest calls."""
    records = context.obj.get("/v1/calls", tool=tool, limit=limit)["calls"]
    if as_json:
        printing.print_json(records)
        return
    rows = [
        (_local_time(record["created_at"]), printing.format_called_action(record["tool_name"], record["action"]))
        + (printing.format_status(record["status"], record["error_type"]),)
        + (record["principal"] or "-", single_line(record["error"] or json.dumps(record["result"], ensure_ascii=False)))
        for record in records
    ]
    printing.print_table(("when", "tool", "status", "caller", "what came of it"), rows, empty="No calls.", cut=(4,))


@runs_app.command("list")
def list_runs(context: typer.Context, limit: Limit = 20, as_json: AsJson = False) -> None:
    """List runs, the latest first."""
    runs = context.obj.get("/v1/runs", limit=limit)["runs"]
    if as_json:
        printing.print_json(runs)
        return
    rows = [(run["run_id"], _local_time(run["at"]), run["state"], single_line(run["task"])) for run in runs]
    printing.print_table(("run", "when", "state", "task"), rows, empty="No runs.", cut=(3,))


@runs_app.command("show")
def show_run(context: typer.Context, run_id: RunId) -> None:
    """Show a run, as JSON."""
    printing.print_json(context.obj.get(f"/v1/runs/{quote(run_id, safe='')}"))


@runs_app.command("resume")
def resume_run(
    context: typer.Context,
    run_id: RunId,
    answer: Annotated[str | None, typer.Argument(help="Your answer to its question.")] = None,
    approve: Annotated[
        bool | None, typer.Option("--approve/--deny", help="Allow or refuse the calls it waits for.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Resume a run that waits or was interrupted."""
    body = {"answer": answer, "approve": approve}
    _follow_answer(context.obj.stream(f"/v1/runs/{quote(run_id, safe='')}/resume", body), as_json=as_json)


@approvals_app.command("list")
def list_approvals(context: typer.Context, as_json: AsJson = False) -> None:
    """List the calls that wait for approval."""
    requests = context.obj.get("/v1/approvals", limit=1_000)["approvals"]
    if as_json:
        printing.print_json(requests)
        return
    rows = [
        (request["approval_id"], request["tool_id"], request["principal"])
        + (single_line(json.dumps(request["arguments"], ensure_ascii=False)),)
        for request in requests
    ]
    printing.print_table(("id", "tool", "caller", "arguments"), rows, empty="No call waits for approval.", cut=(3,))


@approvals_app.command("show")
def show_approval(context: typer.Context, approval_id: Annotated[str, typer.Argument(help="The id.")]) -> None:
    """Show a request, as JSON."""
    printing.print_json(context.obj.get(f"/v1/approvals/{quote(approval_id, safe='')}"))


@approvals_app.command("approve")
def approve_call(
    context: typer.Context,
    approval_id: Annotated[str, typer.Argument(help="The id.")],
    reason: Annotated[str, typer.Option("--reason", help="Why.")] = "",
) -> None:
    """Allow a call."""
    _decide(context.obj, approval_id, allowed=True, reason=reason)


@approvals_app.command("deny")
def deny_call(
    context: typer.Context,
    approval_id: Annotated[str, typer.Argument(help="The id.")],
    reason: Annotated[str, typer.Option("--reason", help="Why; the model is told.")] = "",
) -> None:
    """Refuse a call."""
    _decide(context.obj, approval_id, allowed=False, reason=reason)


def _decide(server: RemoteServer, approval_id: str, *, allowed: bool, reason: str) -> None:
    path = f"/v1/approvals/{quote(approval_id, safe='')}"
    decided = server.post(path, {"allowed": allowed, "reason": reason})
    echo(f"{decided['tool_id']} ({approval_id}): {decided['state']}")


def _local_time(text: str) -> str:
    return f"{datetime.fromisoformat(text).astimezone():%Y-%m-%d %H:%M:%S}"
