"""OpenAI's API of the server: what is answered, what is refused, and what a failed model becomes."""

import json
from typing import Any

import httpx
import pytest

from ferrule.errors import ModelUnavailable
from ferrule.testing import ScriptedModel
from tests.server.application import serve

pytest.importorskip("fastapi", reason="pip install 'ferrule[server]'")

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


async def test_a_model_that_fails_is_no_answer() -> None:
    model = ScriptedModel([ModelUnavailable("500 from the provider")], loop=True)
    async with serve(model=model) as site, site.client("anyone") as http:
        question = {"messages": [{"role": "user", "content": "which of them?"}]}
        for path, body in ((CHAT, question), (RESPONSES, {"input": "which of them?"})):
            response = await http.post(path, json=body)
            assert response.status_code == 502 and "500 from the provider" in response.json()["error"]["message"]
            assert response.json()["error"]["type"] == "server_error"
            streamed = await http.post(path, json={**body, "stream": True})
            assert "502" in streamed.text and "stop" not in streamed.text


async def ask(http: httpx.AsyncClient, *messages: tuple[str, str]) -> str:
    body = {"messages": [{"role": role, "content": text} for role, text in messages]}
    return str((await http.post(CHAT, json=body)).json()["choices"][0]["message"]["content"])


async def test_a_greeting_gets_a_fixed_reply_only_without_instructions() -> None:
    async with serve(model=ScriptedModel(['{"greeting": "hello"}'], loop=True)) as site, site.client("anyone") as http:
        assert "Ferrule" in await ask(http, ("user", "hi"))
        answer = await ask(http, ("system", "Answer with JSON only."), ("user", "hi"))
        assert json.loads(answer) == {"greeting": "hello"}


@pytest.mark.parametrize(
    ("path", "name", "value"),
    [
        (CHAT, "tools", [{"type": "function", "function": {"name": "f"}}]),
        (CHAT, "n", 2),
        (CHAT, "response_format", {"type": "json_object"}),
        (RESPONSES, "tools", [{"type": "web_search"}]),
        (RESPONSES, "text", {"format": {"type": "json_object"}}),
    ],
)
async def test_what_would_change_the_answer_and_is_not_built_is_refused(path: str, name: str, value: Any) -> None:
    body = HELLO if path == CHAT else {"input": "hi"}
    async with serve(model=ScriptedModel(["hello"], loop=True)) as site, site.client("anyone") as http:
        refused = await http.post(path, json={**body, name: value})
        assert refused.status_code == 400 and repr(name) in refused.json()["detail"]
        assert refused.json()["error"]["param"] == name and refused.json()["error"]["code"] == "unsupported_parameter"
        plain = {"n": 1, "tools": [], "response_format": {"type": "text"}, "temperature": 0.5, "text": None}
        assert (await http.post(path, json={**body, **plain})).status_code == 200
