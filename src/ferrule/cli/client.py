"""What commands need of Ferrule: from the project here (`LocalClient`), or from a server (`ferrule.cli.remote`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import typer

from ferrule.cli.printing import describe_run, describe_tool, print_json, print_tool
from ferrule.cli.session import Session, fail, run, run_with_store
from ferrule.cli.terminal import ProgressLine, terminal_elicitation
from ferrule.core.call import ToolExecutionContext, ToolExecutionResult
from ferrule.core.spec import Tool, listing_order
from ferrule.engine import ToolEngine
from ferrule.errors import SetupError
from ferrule.library.library import UnifiedToolLibrary
from ferrule.policy.approvals import Approval, ApprovalRequest, Approvals
from ferrule.store import ToolKnowledgeStore

MIN_ID_LENGTH = 4


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


class FerruleClient(Protocol):
    """The tools, calls, runs and approvals of a project, here or on a server. Lists have JSON values."""

    def call(self, name: str, values: dict[str, Any], options: CallOptions) -> CallOutcome: ...

    def ask(self, question: str | None, options: AskOptions) -> None:
        """Print the answer to a question as it arrives, or the answer of a run that is resumed."""
        ...

    def list_tools(self) -> list[dict[str, Any]]: ...

    def search_tools(self, text: str) -> list[dict[str, Any]]: ...

    def show_tool(self, name: str, *, as_json: bool) -> None: ...

    def list_calls(self, limit: int, **filters: Any) -> list[dict[str, Any]]: ...

    def list_runs(self, limit: int) -> list[dict[str, Any]]: ...

    def find_run(self, run_id: str) -> dict[str, Any]: ...

    def list_approvals(self, state: Any, limit: int) -> tuple[list[ApprovalRequest], int]:
        """List requests, and say how many match."""
        ...

    def find_approval(self, approval_id: str) -> ApprovalRequest: ...

    def decide(self, approval_id: str, approval: Approval) -> ApprovalRequest: ...


def client_of(context: typer.Context, *, local_only: Sequence[str] = ()) -> FerruleClient:
    """Return the client of a command. With a server, options that work on this machine only are refused."""
    session: Session = context.obj
    if session.server is None:
        return LocalClient(session)
    from ferrule.cli.remote import RemoteClient

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
                tools = engine.registry.candidates(name) or [engine.registry.find_tool(name)]
                for tool in tools:
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
        return run_with_store(self._session, lambda store: Approvals(store).list_and_count(state=state, limit=limit))

    def find_approval(self, approval_id: str) -> ApprovalRequest:
        return run_with_store(self._session, lambda store: _find_request(Approvals(store), approval_id))

    def decide(self, approval_id: str, approval: Approval) -> ApprovalRequest:
        return run_with_store(self._session, lambda store: Approvals(store).record_decision(approval_id, approval))


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
