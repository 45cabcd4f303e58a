"""Plans are run by both workflows."""

import pytest


@pytest.fixture(params=["simple", "langgraph"])
def workflow(request: pytest.FixtureRequest) -> str:
    if request.param == "langgraph":
        pytest.importorskip("langgraph", reason='needs LangGraph: pip install "ferrule[langgraph]"')
    return str(request.param)
