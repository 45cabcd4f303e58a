"""What a client gets through Ferrule equals what the server gives, for any result, by both transports and both eras."""

import json
import os
import sys
from base64 import b64encode
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import example, given
from hypothesis import strategies as st
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from tests.kinds.mcp.mcp_servers import listening
from tests.server.serving import Project
from tests.server.test_gateway import as_json

pytest.importorskip("fastapi", reason="pip install 'ferrule[server]'")

HERE = Path(__file__).parent
MIRROR = HERE / "mirror_server.py"

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
names = st.text("abcdefghij-_.", min_size=1, max_size=10)
numbers = st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(texts, values, max_size=3)
annotations = st.fixed_dictionaries(
    {},
    optional={
        "audience": st.lists(st.sampled_from(["user", "assistant"]), max_size=2),
        "priority": st.floats(0, 1),
        "lastModified": st.datetimes().map(lambda time: f"{time:%Y-%m-%dT%H:%M:%SZ}"),
    },
)
metas = st.dictionaries(names.map(lambda name: f"example.com/{name}"), values, max_size=2)
data = st.binary(max_size=30).map(lambda content: b64encode(content).decode())
addresses = names.map(lambda name: f"memo://{name}/x")
icons = st.lists(st.fixed_dictionaries({"src": addresses}, optional={"mimeType": texts, "sizes": st.just(["48x48"])}))


def block(kind: str, required: dict[str, Any], **optional: Any) -> Any:
    return st.fixed_dictionaries(
        {"type": st.just(kind), **required}, optional={"annotations": annotations, "_meta": metas, **optional}
    )


resources = st.fixed_dictionaries({"uri": addresses, "text": texts}, optional={"mimeType": texts, "_meta": metas})
blocks = st.one_of(
    block("text", {"text": texts}),
    block("image", {"data": data, "mimeType": st.just("image/png")}),
    block("audio", {"data": data, "mimeType": st.just("audio/wav")}),
    block("resource", {"resource": resources}),
    block("resource", {"resource": st.fixed_dictionaries({"uri": addresses, "blob": data})}),
    block(
        "resource_link",
        {"uri": addresses, "name": names},
        title=texts,
        description=texts,
        mimeType=texts,
        size=st.integers(0, 2**40),
        icons=icons,
    ),
)
results = st.fixed_dictionaries(
    {"content": st.lists(blocks, max_size=4)},
    optional={"structuredContent": objects, "isError": st.booleans(), "_meta": metas},
)


@dataclass(frozen=True)
class Clients:
    """One client of the server itself, and one of Ferrule in front of it."""

    portal: BlockingPortal
    direct: Client
    gateway: Client

    def call_both(self, result: dict[str, Any]) -> tuple[Any, Any]:
        expected = self.portal.call(self.direct.call_tool, "reply", {"result": result})
        return as_json(expected), as_json(self.portal.call(self.gateway.call_tool, "mirror__reply", {"result": result}))


@contextmanager
def connected(folder: Path, transport: str, mode: str) -> Iterator[Clients]:
    project = Project(folder)
    with ExitStack() as stack:
        if transport == "stdio":
            arguments = [str(MIRROR), "stdio"]
            entry: dict[str, Any] = {"command": sys.executable, "args": arguments}
            ferrule = ["-m", "ferrule", "--config", str(folder / "ferrule.toml"), "mcp", "serve"]
            targets: list[Any] = [
                stdio_client(StdioServerParameters(command=sys.executable, args=each, env=dict(os.environ)))
                for each in (arguments, ferrule)
            ]
        else:
            entry = {"url": f"{stack.enter_context(listening(MIRROR, 'http'))}/mcp"}
        (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"mirror": entry}}))
        if transport == "http":
            targets = [entry["url"], f"{stack.enter_context(project.serve()).url}/mcp"]
        portal = stack.enter_context(start_blocking_portal())
        with portal.wrap_async_context_manager(_connect(targets, mode)) as (direct, gateway):
            yield Clients(portal, direct, gateway)


class _connect:
    """Both clients, opened and closed in one task."""

    def __init__(self, targets: list[Any], mode: str) -> None:
        self._targets, self._mode, self._stack = targets, mode, AsyncExitStack()

    async def __aenter__(self) -> tuple[Client, Client]:
        clients = [await self._stack.enter_async_context(Client(each, mode=self._mode)) for each in self._targets]
        return clients[0], clients[1]

    async def __aexit__(self, *exc: Any) -> None:
        await self._stack.aclose()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("transport", "mode"),
    [
        pytest.param("http", "2026-07-28", marks=pytest.mark.integration),
        pytest.param("http", "legacy", marks=pytest.mark.long),
        pytest.param("stdio", "2026-07-28", marks=pytest.mark.long),
        pytest.param("stdio", "legacy", marks=pytest.mark.long),
    ],
)
def test_any_result_is_passed_on_unchanged(transport: str, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with connected(tmp_path, transport, mode) as clients:

        @given(results)
        @example(
            {"content": [], "structuredContent": {"long": 10**30 + 1, "small": -(10**25) - 1, "none": None, "": []}}
        )
        def check(result: dict[str, Any]) -> None:
            expected, passed_on = clients.call_both(result)
            assert passed_on == expected

        check()
