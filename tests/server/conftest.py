"""The server that the tests of a file share: of its fixture `project`, which has the same scope."""

from collections.abc import Iterator

import httpx
import pytest

from tests.server.documented import DocumentedResponses
from tests.server.serving import Project, RunningServer


@pytest.fixture(scope="module")
def server(project: Project) -> Iterator[RunningServer]:
    with project.serve() as server:
        yield server


@pytest.fixture
def http(server: RunningServer) -> Iterator[httpx.Client]:
    """A client whose responses are compared with the API's document."""
    with server.client() as client:
        documented = DocumentedResponses(client.get("/openapi.json").json())

        def check(response: httpx.Response) -> None:
            if response.headers.get("content-type") == "application/json":
                response.read()
                documented.check(response)

        client.event_hooks = {"response": [check]}
        yield client


@pytest.fixture(params=["legacy", "2026-07-28"])
def mode(request: pytest.FixtureRequest) -> str:
    """An era of the protocol of MCP."""
    return str(request.param)
