"""Model servers on this machine are found by themselves, and their models are used by name."""

import asyncio
import os
from collections.abc import Iterator

import pytest

from ferrule import SetupError, choose_model
from ferrule.core.messages import user_message
from ferrule.errors import ModelUnavailable
from ferrule.models import ModelRequest, RetryingModel, close_model, servers
from ferrule.models.choose import find_default
from ferrule.models.keys import EnvironmentWithKeys, model_environment
from ferrule.models.servers import LOCAL_SERVERS, find_servers
from tests.models.model_server import ollama_answers, openai_answers
from tests.support.http_servers import (
    HANG,
    AnyAnswer,
    address_without_server,
    answers_in_order,
    json_answer,
    serve_http_in_thread,
)

pytestmark = pytest.mark.integration

VARIABLES = {"ollama": "OLLAMA_HOST", "lmstudio": "LMSTUDIO_BASE_URL", "llamacpp": "LLAMACPP_BASE_URL"}
VARIABLES["vllm"] = "VLLM_BASE_URL"


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server of the tests is found although the machine is busy."""
    monkeypatch.setattr(servers, "PROBE_TIMEOUT", 60.0)
    monkeypatch.setattr(servers, "_CONNECT_TIMEOUT", 60.0)


@pytest.fixture
def nowhere() -> Iterator[dict[str, str]]:
    """An environment in which every server is at a port where nothing listens."""
    with address_without_server() as url:
        yield dict.fromkeys(VARIABLES.values(), url)


async def reply_of(spec: str, environ: dict[str, str]) -> str:
    model = choose_model(spec, environ)
    try:
        return (await model.generate(ModelRequest(messages=[user_message("Hi")]))).text
    finally:
        await close_model(model)


async def test_a_model_of_ollama_answers_by_its_name_and_the_server_is_not_asked_for_its_models():
    with serve_http_in_thread(ollama_answers("qwen3:8b")) as server:
        environ = {"OLLAMA_HOST": f"127.0.0.1:{server.port}"}
        assert await reply_of("ollama:qwen3:8b", environ) == "Hello from Ollama."
        assert server.paths == ["/v1/chat/completions"]
        assert b'"model":"qwen3:8b"' in server.requests[0].body.replace(b" ", b"")
        assert choose_model("ollama:qwen3:8b", environ).name == "ollama:qwen3:8b"


@pytest.mark.parametrize(
    ("prefix", "owner"), [("lmstudio", "organization_owner"), ("llamacpp", "llamacpp"), ("vllm", "vllm")]
)
async def test_servers_with_the_api_of_openai_are_found_and_answer(prefix, owner):
    with serve_http_in_thread(openai_answers(owner, "text-embedding-x", "qwen3-4b")) as server:
        environ = {VARIABLES[prefix]: f"{server.url}/v1"}
        [state] = find_servers(environ, [prefix])
        assert (state.problem, state.specs) == ("", [f"{prefix}:qwen3-4b"])
        assert await reply_of(prefix, environ) == "Hello."  # without a name, its first model that can talk


async def test_a_server_that_needs_a_key_gets_the_one_of_its_variable():
    with serve_http_in_thread(openai_answers("vllm", "m", key="local-key-123")) as server:
        environ = {"VLLM_BASE_URL": server.url}
        assert find_servers(environ, ["vllm"])[0].problem == "it needs a key"
        environ["VLLM_API_KEY"] = "local-key-123"
        assert find_servers(environ, ["vllm"])[0].specs == ["vllm:m"]
        assert await reply_of("vllm:m", environ) == "Hello."


def test_other_programs_at_the_port_are_not_taken_for_a_model_server(nowhere):
    pages: list[AnyAnswer] = [
        (200, {}, b"<html>hello</html>"),
        json_answer({"data": [{"id": "x", "owned_by": "me"}]}),
        json_answer([], 500),
    ]
    for page in pages:
        with serve_http_in_thread(answers_in_order(page)) as server:
            environ = {
                **nowhere,
                "LLAMACPP_BASE_URL": server.url,
                "VLLM_BASE_URL": server.url,
                "OLLAMA_HOST": server.url,
            }
            states = {state.server.prefix: state for state in find_servers(environ)}
            assert {name: state.models for name, state in states.items()} == dict.fromkeys(LOCAL_SERVERS, ())
            assert "something else answers" in states["vllm"].problem
            assert "no server at" in states["lmstudio"].problem


def test_a_server_that_accepts_and_never_answers_delays_nobody_for_long(monkeypatch):
    monkeypatch.setattr(servers, "PROBE_TIMEOUT", 0.1)
    with serve_http_in_thread(lambda _: HANG) as server:
        states = find_servers(dict.fromkeys(VARIABLES.values(), server.url))
    assert {state.problem for state in states} <= {"it did not answer in time", f"no server at {server.url}"}


@pytest.mark.parametrize(
    ("value", "url"),
    [
        ("", "http://127.0.0.1:11434"),
        ("0.0.0.0", "http://127.0.0.1:11434"),
        ("0.0.0.0:5000", "http://127.0.0.1:5000"),
        (":5000", "http://127.0.0.1:5000"),
        ("http://box:5000/", "http://box:5000"),
        ("https://models.example", "https://models.example:443"),
        ("[::1]:5000", "http://[::1]:5000"),
    ],
)
def test_addresses_are_read_as_ollama_reads_them(value, url):
    assert LOCAL_SERVERS["ollama"].url({"OLLAMA_HOST": value}) == url


async def test_a_server_that_does_not_run_says_how_to_start_it_and_where_it_was_looked_for(nowhere):
    with pytest.raises(SetupError, match=r"Ollama cannot be used: no server at http.*Start it with `ollama serve`"):
        choose_model("ollama", nowhere)
    model = choose_model("ollama:qwen3", nowhere)
    assert isinstance(model, RetryingModel)
    model.attempts = 1
    with pytest.raises(ModelUnavailable, match=rf"{nowhere['OLLAMA_HOST']}/v1/chat/completions"):
        await model.generate(ModelRequest(messages=[user_message("Hi")]))


def test_without_a_key_the_first_model_of_a_server_is_the_default_and_the_reason_is_given(monkeypatch, nowhere):
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "FERRULE_MODEL"):
        monkeypatch.delenv(name, raising=False)
    for name, url in nowhere.items():
        monkeypatch.setenv(name, url)
    with serve_http_in_thread(ollama_answers("nomic-embed-text:latest", "qwen3:8b", "gemma4:12b")) as server:
        monkeypatch.setenv("OLLAMA_HOST", server.url)
        assert choose_model().name == "offline"  # the tests do not look for servers
        monkeypatch.setenv("FERRULE_LOCAL_SERVERS", "on")
        assert choose_model().name == "ollama:qwen3:8b"
        choice = find_default(model_environment())
        assert choice.reason == f"Ollama runs at {server.url}, and there is no key"
        monkeypatch.setenv("FERRULE_MODEL", "gemma4:12b")
        assert choose_model().name == "ollama:gemma4:12b"
        seen = len(server.requests)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        monkeypatch.delenv("FERRULE_MODEL")
        assert choose_model().name == "openai:gpt-5.4-mini"
        assert choose_model("offline").name == "offline"
        assert len(server.requests) == seen  # whoever names a model, or has a key, does not wait for servers
        assert choose_model(None, {}).name == "offline"


def test_an_environment_of_ones_own_decides_alone(monkeypatch):
    assert not isinstance(model_environment({}), EnvironmentWithKeys)
    assert isinstance(model_environment(os.environ), EnvironmentWithKeys)


# litellm


@pytest.mark.long
async def test_litellm_reaches_a_server_with_tools_and_streams(monkeypatch, tmp_path):
    pytest.importorskip("litellm", reason="needs the extra litellm")
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text("OPENAI_BASE_URL=http://192.0.2.1\n")  # litellm must not read it
    with serve_http_in_thread(openai_answers("vllm", "qwen3", key="stored-key-12345")) as server:
        monkeypatch.setenv("HOSTED_VLLM_API_BASE", f"{server.url}/v1")
        model = choose_model("litellm:hosted_vllm/qwen3", {"HOSTED_VLLM_API_KEY": "stored-key-12345"})
        assert model.name == "litellm:hosted_vllm/qwen3"
        schema = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
        request = ModelRequest(messages=[user_message("Hi")], tools=[schema])
        pieces: list[str] = []
        reply = await model.generate(request)
        streamed = await model.generate(request, pieces.append)
        await close_model(model)
        await asyncio.sleep(0)  # litellm closes its connections in a task
    assert reply.text == streamed.text == "".join(pieces) == "Hello."
    assert reply.usage.input_tokens == 12 and b'"name": "add"' in server.requests[0].body.replace(b'":"', b'": "')
    assert "OPENAI_BASE_URL" not in os.environ


@pytest.mark.long
async def test_an_error_of_litellm_is_a_model_error_without_the_key(monkeypatch):
    pytest.importorskip("litellm", reason="needs the extra litellm")
    refused = json_answer({"error": {"message": "wrong key my-secret-key-99", "type": "x"}}, 401)
    with serve_http_in_thread(lambda _: refused) as server:
        monkeypatch.setenv("HOSTED_VLLM_API_BASE", f"{server.url}/v1")
        model = choose_model("litellm:hosted_vllm/qwen3", {"HOSTED_VLLM_API_KEY": "my-secret-key-99"})
        with pytest.raises(Exception, match="refused the request") as caught:
            await model.generate(ModelRequest(messages=[user_message("Hi")]))
        await close_model(model)
    assert "my-secret-key-99" not in str(caught.value)


def test_litellm_needs_a_name():
    with pytest.raises(SetupError, match="'litellm' needs the name of a model"):
        choose_model("litellm", {})
