"""What commands need of Ferrule: from the project here (`LocalClient`), or from a server (`RemoteClient`)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

import typer

from ferrule.cli.printing import describe_tool, format_time, print_json, print_tool
from ferrule.cli.session import EXIT_STOPPED, EXIT_WAITING, Session, fail, run, run_with_store
from ferrule.cli.terminal import ProgressLine, echo, print_error, terminal_elicitation
from ferrule.core.call import ToolExecutionContext, ToolExecutionResult
from ferrule.core.spec import Tool, listing_order
from ferrule.engine import ToolEngine
from ferrule.errors import SetupError
from ferrule.library.library import UnifiedToolLibrary
from ferrule.policy.approvals import Approval, ApprovalRequest, Approvals
from ferrule.store import ToolKnowledgeStore

if TYPE_CHECKING:
    import httpx

    from ferrule.agent.run import Run

MIN_ID_LENGTH = 4
TOKEN_VARIABLE: Final = "FERRULE_TOKEN"
EXIT_UNREACHABLE: Final = 10
_REFUSALS_OF_CALLS: Final = (403, 404, 422, 428, 429)


@dataclass(frozen=True, kw_only=True)
class AskOptions:
    """How a question is to be answered, or a run resumed."""

    model: str | None = None
    strategy: str | None = None
    tools: list[str] | None = None
    turns: int | None = None
    resume: str | None = None
    conversation: str | None = None
    approve: bool | None = None
    yes: bool = False
    attach: Sequence[Path] = ()
    continues: bool = False
    no_cache: bool = False
    quiet: bool = False
    as_json: bool = False


class CallOptions(NamedTuple):
    """How a tool is to be called."""

    action: str | None
    timeout: float | None
    approval: str | None
    shows_progress: bool


class CallOutcome(NamedTuple):
    """What a call returned."""

    result: ToolExecutionResult
    described: dict[str, Any]
    """For `--json`."""
    whole_output: bytes | None = None
    """The content of the artifact, if the result was too long for a model."""


def client_of(context: typer.Context, *, local_only: Sequence[str] = ()) -> LocalClient | RemoteClient:
    """Return the client of a command. With a server, options that work on this machine only are refused."""
    session: Session = context.obj
    if session.server is None:
        return LocalClient(session)
    for parameter in context.command.params:
        source = context.get_parameter_source(str(parameter.name))
        if parameter.name in local_only and source is not None and source.name == "COMMANDLINE":
            fail(f"{parameter.opts[0]} works without --server only.")
    return RemoteClient(session.server)


class LocalClient:
    """The project of this machine."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def call(self, name: str, values: dict[str, Any], options: CallOptions) -> CallOutcome:
        async def command() -> CallOutcome:
            line = ProgressLine(enabled=options.shows_progress)
            engine = self._session.engine(on_elicit=terminal_elicitation(line.hidden), tool_name=name)
            async with UnifiedToolLibrary(engine=engine, hub=self._session.config().hub) as library:
                with line:
                    context = ToolExecutionContext(caller_type="direct", caller_id="cli", approval_id=options.approval)
                    result = await library.execute(
                        name, values, context, action=options.action, timeout=options.timeout, on_progress=line.progress
                    )
                artifact = result.metadata.get("artifact_id")
                return CallOutcome(result, result.to_dict(), engine.get_artifact(artifact) if artifact else None)

        return run(command())

    def ask(self, question: str | None, options: AskOptions) -> None:
        """Print the answer to a question as it arrives, or the answer of a run that is resumed."""
        from ferrule.cli.ask import run_question

        run_question(self._session, question, options)

    def list_tools(self) -> list[dict[str, Any]]:
        async def command() -> list[dict[str, Any]]:
            async with self._session.listing_engine() as engine:
                await engine.wait_for_pins()
                return describe_tools(engine, sorted(engine.registry, key=listing_order))

        return run(command())

    def search_tools(self, text: str) -> list[dict[str, Any]]:
        async def command() -> list[dict[str, Any]]:
            async with self._session.listing_engine() as engine:
                await engine.wait_for_pins()
                from ferrule.catalog.search import RegistryIndex

                index = RegistryIndex(engine.registry, engine.store.vectors)
                await index.prepare(text)
                return [describe_tool(hit.tool, None) for hit in index.search(text, 20)]

        return run(command())

    def show_tool(self, name: str, *, as_json: bool) -> None:
        async def command() -> None:
            async with self._session.listing_engine() as engine:
                await engine.wait_for_pins()
                for tool in engine.registry.candidates(name) or [engine.registry.find_tool(name)]:
                    if as_json:
                        print_json(describe_tools(engine, [tool])[0])
                    else:
                        print_tool(tool, engine)

        run(command())

    def list_calls(self, limit: int, **filters: Any) -> list[dict[str, Any]]:
        records = run_with_store(self._session, lambda store: store.query_call_records(limit=limit, **filters))
        return [record.to_dict() for record in records]

    def list_runs(self, limit: int) -> list[dict[str, Any]]:
        from ferrule.agent.run import RUN_PREFIX, Run

        async def read(store: ToolKnowledgeStore) -> list[dict[str, Any]]:
            streams = list((await store.list_streams(RUN_PREFIX)).items())[:limit]
            return [
                describe_run(await Run.load_and_detect_interruption(stream.removeprefix(RUN_PREFIX), store), time)
                for stream, time in streams
            ]

        return run_with_store(self._session, read)

    def find_run(self, run_id: str) -> dict[str, Any]:
        from ferrule.agent.run import Run

        async def read(store: ToolKnowledgeStore) -> dict[str, Any]:
            loaded = await Run.load_and_detect_interruption(run_id, store)
            return {**describe_run(loaded, None), "messages": loaded.messages}

        return run_with_store(self._session, read)

    def list_approvals(self, state: Any, limit: int) -> tuple[list[ApprovalRequest], int]:
        """List requests, and say how many match."""
        return run_with_store(self._session, lambda store: Approvals(store).list_and_count(state=state, limit=limit))

    def find_approval(self, approval_id: str) -> ApprovalRequest:
        return run_with_store(self._session, lambda store: _find_request(Approvals(store), approval_id))

    def decide(self, approval_id: str, approval: Approval) -> ApprovalRequest:
        return run_with_store(self._session, lambda store: Approvals(store).record_decision(approval_id, approval))


def describe_run(run: Run, written_at: float | None) -> dict[str, Any]:
    """Describe a run for lists and JSON."""
    return {
        "run_id": run.id,
        "at": format_time(written_at),
        "state": run.state.value,
        "task": run.task,
        "turns": run.turns,
        "calls": len(run.steps),
        "text": run.text,
        "reason": run.reason,
    }


def describe_tools(engine: ToolEngine, tools: Sequence[Tool]) -> list[dict[str, Any]]:
    now = engine.registry.snapshot()
    return [describe_tool(tool, now.why_unavailable(tool) if tool in now.unavailable else None) for tool in tools]


async def _find_request(approvals: Approvals, approval_id: str) -> ApprovalRequest:
    """Find the request with this id, or the only request whose id begins so."""
    if len(approval_id) < MIN_ID_LENGTH:
        raise SetupError(
            f"Write at least {MIN_ID_LENGTH} characters of the id; `ferrule approvals list` shows the ids."
        )
    matches = [r for r in await approvals.list_requests(limit=10_000) if r.approval_id.startswith(approval_id)]
    if len(matches) > 1:
        raise SetupError(f"{len(matches)} requests begin with {approval_id!r}. Write more of the id.")
    return matches[0] if len(matches) == 1 else await approvals.get(approval_id)


class RemoteClient:
    """A server elsewhere: the HTTP API of `ferrule serve`, with the token in the variable FERRULE_TOKEN."""

    def __init__(self, url: str) -> None:
        import httpx

        self._url = url.rstrip("/")
        token = os.environ.get(TOKEN_VARIABLE, "").strip()
        if not (token.isascii() and token.isprintable()):
            fail(f"{TOKEN_VARIABLE} is not a token: it has characters that no token has.")
        headers = {} if not token else {"Authorization": f"Bearer {token}"}
        self._client = httpx.Client(base_url=self._url, headers=headers, timeout=httpx.Timeout(60.0, read=None))

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
        fail(
            "The server ended the stream before the answer. `runs list` shows the state of the run.", code=EXIT_STOPPED
        )

    def list_tools(self) -> list[dict[str, Any]]:
        return [{**tool, "unavailable": tool["needs"]} for tool in self._get("/v1/tools")["tools"]]

    def search_tools(self, text: str) -> list[dict[str, Any]]:
        return list(self._get("/v1/tools", query=text, limit=20)["tools"])

    def show_tool(self, name: str, *, as_json: bool) -> None:
        """Print a tool as JSON in any case."""
        print_json(self._get(f"/v1/tools/{quote(name, safe='')}"))

    def list_calls(self, limit: int, **filters: Any) -> list[dict[str, Any]]:
        """List the records of calls. Takes the filters of the store's query that the API has too."""
        since = filters.pop("since", None)
        filters["since"] = since.isoformat() if isinstance(since, datetime) else None
        filters["tool"] = filters.pop("tool_name", None)
        return list(self._get("/v1/calls", limit=limit, **filters)["calls"])

    def list_runs(self, limit: int) -> list[dict[str, Any]]:
        return list(self._get("/v1/runs", limit=limit)["runs"])

    def find_run(self, run_id: str) -> dict[str, Any]:
        return dict(self._get(f"/v1/runs/{quote(run_id, safe='')}"))

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
        import httpx

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
    from ferrule.agent.answer import AgentState

    if as_json:
        print_json(answer)
    elif answer["state"] != AgentState.WAITING:
        echo(answer["answer"])
    else:
        for question in answer["questions"]:
            print_error(f'? {question["text"]}\n  Answer with: ferrule runs resume {answer["run_id"]} "your answer"')
        for request in answer["approvals"]:
            print_error(f"? {request['tool_id']} needs approval: {request['reason']}")
            print_error(f"  Decide with: ferrule approvals approve {request['approval_id']}   (or deny)")
            print_error(f"  The run then continues automatically: ferrule runs show {answer['run_id']}")
    if answer["state"] != AgentState.FINISHED:
        raise typer.Exit(EXIT_WAITING if answer["state"] == AgentState.WAITING else EXIT_STOPPED)
