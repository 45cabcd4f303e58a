"""Servers other people wrote, as real programs: `scripts/public_servers.sh` installs them.

The reference servers in Python (time, git, sqlite) and in TypeScript (everything, filesystem, memory), from `mcp.json`
through the library.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from ferrule import ToolEngine, ToolEngineConfig, UnifiedToolLibrary
from ferrule.core.call import Progress
from ferrule.core.content import Image, Resource
from ferrule.core.elicitation import Elicitation, OnElicit
from tests.kinds.mcp.mcp_servers import wait_for
from tests.support.ports import reserved_port
from tests.support.waiting import until

pytestmark = pytest.mark.long

SERVERS = Path(__file__).parents[3] / ".servers"
PYTHON, NODE = SERVERS / "python" / "bin", SERVERS / "node" / "node_modules" / "@modelcontextprotocol"
HOW = "not installed: run scripts/public_servers.sh, which needs the network once"
from_pypi = pytest.mark.skipif(not (SERVERS / "python.sum").exists(), reason=HOW)
from_npm = pytest.mark.skipif(not (SERVERS / "node.sum").exists() or not shutil.which("node"), reason=HOW)


def python_server(name: str, *arguments: object) -> dict[str, Any]:
    return {"command": str(PYTHON / f"mcp-server-{name}"), "args": [str(each) for each in arguments]}


def node_server(name: str, *arguments: object) -> dict[str, Any]:
    script = NODE / f"server-{name}" / "dist" / "index.js"
    return {"command": "node", "args": [str(script), *map(str, arguments)]}


@contextlib.asynccontextmanager
async def library_with(
    folder: Path, *, on_elicit: OnElicit | None = None, **servers: object
) -> AsyncIterator[UnifiedToolLibrary]:
    """A library that knows these servers; when it is left, nothing of them runs any more."""
    before = running_servers()
    file = folder / "mcp.json"
    file.write_text(json.dumps({"mcpServers": servers}))
    config = ToolEngineConfig(tools_directory=str(folder / "tools"), mcp_file=str(file), builtin_tools=False)
    async with UnifiedToolLibrary(engine=ToolEngine(config, on_elicit=on_elicit)) as library:
        yield library
    assert running_servers().keys() <= before.keys()


def running_servers() -> dict[int, str]:
    """The servers this test runs or has left behind, by their numbers."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True).stdout
    lines = [line.split(maxsplit=2) for line in listed.splitlines()]
    ours = {str(os.getpid()), "1"}
    return {int(line[0]): line[2] for line in lines if line[1] in ours and str(SERVERS) in line[-1]}


@contextlib.contextmanager
def listening(kind: str, port: int) -> Iterator[str]:
    """The everything server behind HTTP; gives its address."""
    command = ["node", str(NODE / "server-everything" / "dist" / "index.js"), kind]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, env={**os.environ, "PORT": str(port)}, stdout=quiet, stderr=quiet) as process:
        try:
            wait_for(port, process)
            yield f"http://127.0.0.1:{port}/{'sse' if kind == 'sse' else 'mcp'}"
        finally:
            process.kill()


def make_repository(path: Path, message: str) -> Path:
    author = ["-c", "user.name=Ada", "-c", "user.email=ada@example.com"]
    subprocess.run(["git", "init", "-q", path], check=True)
    subprocess.run(["git", *author, "commit", "-q", "--allow-empty", "-m", message], cwd=path, check=True)
    return path


@from_pypi
async def test_the_time_server_converts_times_and_says_what_is_wrong(tmp_path):
    wanted = {"source_timezone": "Europe/Berlin", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    async with library_with(tmp_path, time=python_server("time", "--local-timezone=UTC")) as library:
        right = await library.execute_tool("time", "convert_time", wanted)
        refused = await library.execute_tool("time", "convert_time", {**wanted, "time": "noon"})
        missing = await library.execute_tool("time", "convert_time", {"time": "12:00"})
        again = await library.execute_tool("time__get_current_time", None, {"timezone": "UTC"})
    assert json.loads(right.text)["target"]["timezone"] == "Asia/Tokyo" and again.is_success
    assert refused.error_type == "execution_error" and "Invalid time format" in (refused.error or "")
    assert missing.error_type == "validation_error" and "source_timezone: is required" in (missing.error or "")


@from_pypi
async def test_the_git_server_reads_its_repository_and_no_other(tmp_path):
    repository = make_repository(tmp_path / "repository", message="the first")
    async with library_with(tmp_path, git=python_server("git", "--repository", repository)) as library:
        log = await library.execute_tool("git", "git_log", {"repo_path": str(repository), "max_count": "5"})
        unknown = await library.execute_tool("git", "git_show", {"repo_path": str(repository), "revision": "nope"})
        outside = await library.execute_tool("git", "git_status", {"repo_path": str(tmp_path)})
    assert "the first" in log.text
    assert unknown.error_type == "execution_error" and "nope" in (unknown.error or "")
    assert outside.error_type == "execution_error" and "outside" in (outside.error or "")


@from_pypi
async def test_the_sqlite_server_keeps_what_it_was_told(tmp_path):
    database = tmp_path / "notes.db"
    async with library_with(tmp_path, notes=python_server("sqlite", "--db-path", database)) as library:
        await library.execute_tool("notes", "create_table", {"query": "CREATE TABLE note (text TEXT)"})
        await library.execute_tool("notes", "write_query", {"query": "INSERT INTO note VALUES ('记住')"})
        read = await library.execute_tool("notes", "read_query", {"query": "SELECT * FROM note"})
        wrong = await library.execute_tool("notes", "read_query", {})
        odd = await library.execute_tool("notes", "read_query", {"query": "DROP TABLE note"})
    assert read.output == {"result": "[{'text': '记住'}]"} and wrong.error_type == "validation_error"
    assert odd.is_success and "Only SELECT" in odd.text  # this server calls its own failures successes
    with contextlib.closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT text FROM note").fetchall() == [("记住",)]


@from_npm
async def test_the_filesystem_server_is_held_to_its_folder(tmp_path):
    folder, secret = tmp_path / "folder", tmp_path / "secret.txt"
    folder.mkdir()
    secret.write_text("s3cret")
    (folder / "link.txt").symlink_to(secret)
    async with library_with(tmp_path, files=node_server("filesystem", folder)) as library:
        note = {"path": str(folder / "note.txt"), "content": "你好"}
        assert (await library.execute_tool("files", "write_file", note)).is_success
        read = await library.execute_tool("files", "read_text_file", {"path": note["path"]})
        paths = [str(secret), str(folder / ".." / "secret.txt"), str(folder / "link.txt"), "/etc/passwd"]
        outside = [await library.execute_tool("files", "read_text_file", {"path": path}) for path in paths]
        written = await library.execute_tool("files", "write_file", {"path": str(secret), "content": "x"})
    assert read.output == {"content": "你好"} and read.content == ()
    for result in (*outside, written):
        assert result.error_type == "execution_error" and "Access denied" in (result.error or "")
    assert secret.read_text() == "s3cret" and (folder / "note.txt").read_text() == "你好"


@from_npm
async def test_the_memory_server_remembers_after_a_restart(tmp_path):
    memory = node_server("memory") | {"env": {"MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")}}
    ada = {"name": "Ada", "entityType": "person", "observations": ["wrote the first program"]}
    async with library_with(tmp_path, memory=memory) as library:
        made = await library.execute_tool("memory", "create_entities", {"entities": [ada]})
        wrong = await library.execute_tool("memory", "create_entities", {"entities": [{"name": "Bob"}]})
    async with library_with(tmp_path, memory=memory) as library:
        found = await library.execute_tool("memory", "search_nodes", {"query": "program"})
    assert made.output == {"entities": [ada]} and found.output == {"entities": [ada], "relations": []}
    assert wrong.error_type == "validation_error" and "entities[0].entityType" in (wrong.error or "")


@from_npm
async def test_everything_gives_structured_results_images_and_resources(tmp_path):
    async with library_with(tmp_path, all=node_server("everything")) as library:
        weather = await library.execute_tool("all", "get-structured-content", {"location": "Chicago"})
        image = await library.execute_tool("all__get-tiny-image")
        text = {"resourceType": "Text", "resourceId": 1}
        resource = await library.execute_tool("all", "get-resource-reference", text)
        blob = await library.execute_tool("all", "get-resource-reference", {**text, "resourceType": "Blob"})
        links = await library.execute_tool("all", "get-resource-links", {"count": 2})
        no = await library.execute_tool("all", "get-resource-reference", {**text, "resourceId": -1})
    assert weather.output["conditions"] == "Light rain / drizzle" and weather.content == ()
    assert any(isinstance(part, Image) and part.data.startswith(b"\x89PNG") for part in image.content)
    [held] = [part for part in resource.content if isinstance(part, Resource)]
    [bytes_] = [part for part in blob.content if isinstance(part, Resource)]
    assert (held.text or "").startswith("Resource 1: ") and (bytes_.data or b"").startswith(b"Resource 1: ")
    assert [part.uri for part in links.content if isinstance(part, Resource)][0].startswith("demo://")
    assert no.error_type == "execution_error" and "resourceId" in (no.error or "")


@from_npm
@pytest.mark.parametrize("kind", ["stdio", "streamableHttp", "sse"])
async def test_everything_tells_its_progress_and_can_be_stopped(kind, tmp_path):
    seen: list[Progress] = []
    work = "trigger-long-running-operation"
    async with contextlib.AsyncExitStack() as stack:
        port = stack.enter_context(reserved_port())
        entry = node_server("everything") if kind == "stdio" else {"url": stack.enter_context(listening(kind, port))}
        library = await stack.enter_async_context(library_with(tmp_path, all=entry))
        execute = library.engine.execute
        done = await execute("all", {"duration": 0.4, "steps": 4}, action=work, on_progress=seen.append)
        late = await execute("all", {"duration": 600, "steps": 2}, action=work, timeout=0.3)
        after = await execute("all", {"message": "there?"}, action="echo")
    assert done.is_success and [progress.fraction for progress in seen] == [0.25, 0.5, 0.75, 1.0]
    assert late.error_type == "timeout" and after.text == "Echo: there?"


@from_npm
async def test_a_server_that_was_started_again_is_called_in_a_new_session(tmp_path):
    async with contextlib.AsyncExitStack() as stack:
        port = stack.enter_context(reserved_port())
        with listening("streamableHttp", port) as address:
            library = await stack.enter_async_context(library_with(tmp_path, all={"url": address}))
            before = await library.execute_tool("all", "echo", {"message": "one"})
        with listening("streamableHttp", port):
            # It answers 400 to the old session, not 404: what may not be done twice is not sent again after that.
            refused = await library.execute_tool("all", "toggle-simulated-logging")
            after = await library.execute_tool("all", "toggle-simulated-logging")
            await library.aclose()
    assert before.text == "Echo: one" and not refused.is_success
    assert after.is_success, after.error


@from_npm
async def test_everything_may_ask_the_user_but_no_model(tmp_path):
    questions: list[Elicitation] = []

    async def ask(question: Elicitation) -> dict[str, Any] | None:
        questions.append(question)
        return {"name": "Ada"} if question.url is None else None

    async with library_with(tmp_path, on_elicit=ask, all=node_server("everything")) as library:
        actions = lambda: {c.name for c in library.engine.registry.candidates("all")[0].spec.capabilities}  # noqa: E731
        await until(lambda: "trigger-elicitation-request" in actions())  # it announces them once it knows us
        answered = await library.execute_tool("all", "trigger-elicitation-request")
        sampled = await library.execute_tool("all", "trigger-sampling-request", {"prompt": "hello"})
    assert answered.is_success and "Ada" in answered.text
    assert "name" in (questions[0].schema or {})["properties"]
    assert sampled.error_type == "tool_not_found"  # it offers that only to clients with a model


@from_npm
async def test_a_reading_that_lost_its_server_is_done_again_by_a_new_one(tmp_path):
    seen: list[Progress] = []
    trusted = {**node_server("everything"), "trusted": True}  # else what it says of its actions is not believed
    async with library_with(tmp_path, all=trusted) as library:
        arguments = {"duration": 6, "steps": 60}
        call = asyncio.create_task(
            library.engine.execute("all__trigger-long-running-operation", arguments, on_progress=seen.append)
        )
        await until(lambda: len(seen) > 1)
        [first] = running_servers()
        os.kill(first, signal.SIGKILL)
        result = await call
        [second] = running_servers()
    assert result.is_success and result.metadata["attempts"] == 2 and second != first


@from_pypi
@from_npm
async def test_all_of_them_at_once_are_listed_and_need_not_be_started_for_that_again(tmp_path):
    servers = {
        "time": python_server("time"),
        "git": python_server("git"),
        "sqlite": python_server("sqlite", "--db-path", tmp_path / "db"),
        "everything": node_server("everything"),
        "filesystem": node_server("filesystem", tmp_path),
        "memory": node_server("memory"),
    }
    async with library_with(tmp_path, on_elicit=None, **servers) as library:
        await library.engine._servers.wait_until_listed()
        first = {spec.tool_id: len(spec.capabilities) for spec in await library.get_all_tools()}
        assert len(running_servers()) == 6
    async with library_with(tmp_path, on_elicit=None, **servers) as library:
        again = {spec.tool_id: len(spec.capabilities) for spec in await library.get_all_tools()}
        assert running_servers() == {}
    assert again == first and min(first.values()) >= 2 and len(library.schemas()) == sum(first.values())
