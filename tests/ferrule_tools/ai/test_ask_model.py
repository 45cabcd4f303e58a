"""`ask_model`: scripted models, a real server that speaks like OpenAI, and a real small model."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from ferrule import ToolEngine, UnifiedToolLibrary
from ferrule.concurrency import ConcurrencyConfig
from ferrule.core.call import ToolExecutionResult
from ferrule.core.messages import ToolCall, Usage
from ferrule.core.model import ModelReply
from ferrule.errors import ExecutionFailed, ModelRefused, RequestTooLong, SetupError
from ferrule.testing import ScriptedModel
from ferrule_tools.ai import AskModelConfig, ai_tools
from tests.models.model_server import call, completion, failure, model_server
from tests.support.http_servers import HANG
from tests.support.waiting import time_out_after_start, until


async def ask(
    model: Any, prompt: str = "Say hi.", config: AskModelConfig | None = None, **more: Any
) -> ToolExecutionResult:
    async with ToolEngine() as engine:
        engine.register(*ai_tools(config, choose=lambda word, environ: model))
        return await engine.execute("ask_model", {"prompt": prompt, **more})


async def ask_server(url: str, **config: Any) -> ToolExecutionResult:
    environ = {"OPENAI_BASE_URL": url, "FERRULE_MODEL": "tiny"}
    async with UnifiedToolLibrary() as library:
        library.register(*ai_tools(AskModelConfig(**config), environ=environ))
        return await library.execute_tool("ask_model", parameters={"prompt": "Say hi.", "system": "Be brief."})


async def test_a_model_answers_what_it_is_asked():
    model = ScriptedModel([ModelReply(text=" Hi! ", usage=Usage(requests=1, input_tokens=9, output_tokens=2))])
    result = await ask(model, "Say hi.", system="Be brief.")
    usage = {"requests": 1, "input_tokens": 9, "output_tokens": 2}
    assert result.output == {"answer": "Hi!", "model": "scripted", "usage": usage}
    [request] = model.requests
    assert [message["role"] for message in request.messages] == ["system", "user"]
    assert request.tools == () and request.max_tokens == 4_096


@pytest.mark.integration
async def test_an_openai_server_is_asked():
    async with model_server(completion("Hello!")) as server:
        result = await ask_server(f"{server.url}/v1", max_tokens=50)
    assert result.output["answer"] == "Hello!" and result.output["model"] == "openai:tiny"
    assert result.output["usage"] == {"requests": 1, "input_tokens": 12, "output_tokens": 3}
    [body] = server.bodies
    assert body["max_tokens"] == 50 and "tools" not in body
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Say hi."},
    ]


async def test_a_caller_chooses_among_configured_names():
    config = AskModelConfig(model="openai:big", models={"fast": "openai:small", "local": "ollama:qwen3"})
    specs: list[str | None] = []

    def choose(word: str | None, environ: Mapping[str, str]) -> ScriptedModel:
        specs.append(word)
        return ScriptedModel(["Hi."], loop=True, name=word or "")

    async with ToolEngine() as engine:
        engine.register(*ai_tools(config, choose=choose))
        usual = await engine.execute("ask_model", {"prompt": "Hi"})
        fast = [await engine.execute("ask_model", {"prompt": "Hi", "model": "fast"}) for _ in range(2)]
        wrong = await engine.execute("ask_model", {"prompt": "Hi", "model": "openai:most-expensive"})
    assert [result.output["model"] for result in (usual, *fast)] == ["openai:big", "openai:small", "openai:small"]
    assert specs == ["openai:big", "openai:small"]
    assert "The names are: fast, local. Leave it out" in (wrong.error or "")


async def test_models_are_created_by_the_first_call_and_closed_with_the_engine():
    class Closable(ScriptedModel):
        closed = 0

        async def aclose(self) -> None:
            type(self).closed += 1

    models: list[Closable] = []

    def choose(word: str | None, environ: Mapping[str, str]) -> Closable:
        models.append(Closable(["Hi."], loop=True))
        return models[-1]

    tools = ai_tools(choose=choose)
    for times in (1, 2):
        async with ToolEngine() as engine:
            engine.register(*tools)
            assert len(models) == times - 1
            await engine.execute("ask_model", {"prompt": "Hi"})
            await engine.execute("summarize", {"text": "One. Two. Three."})
        assert (len(models), Closable.closed) == (times, times)


async def test_calls_take_slots_of_the_ai_bucket():
    running: list[int] = []
    most = 0

    class Slow:
        name = "slow"

        async def generate(self, request: Any, on_text: Any = None) -> ModelReply:
            nonlocal most
            running.append(1)
            most = max(most, len(running))
            await asyncio.sleep(0.01)  # meanwhile the next call would begin
            running.pop()
            return ModelReply(text="Hi.")

    async with ToolEngine(concurrency=ConcurrencyConfig(bucket_limits={"ai": 1})) as engine:
        engine.register(*ai_tools(choose=lambda word, environ: Slow()))
        calls = [("ask_model", {"prompt": "Hi"}), ("summarize", {"text": "One. Two."})] * 3
        results = await engine.execute_batch(calls)
    assert all(result.is_success for result in results) and most == 1


@pytest.mark.parametrize("prompt", ["", "  \n\t "])
async def test_an_empty_prompt_is_refused(prompt):
    result = await ask(ScriptedModel([]), prompt)
    assert result.error == "The prompt is empty: say what to ask the model."


async def test_a_prompt_that_is_too_long_costs_nothing():
    model = ScriptedModel([])
    result = await ask(model, "x" * 900, AskModelConfig(max_prompt=1_000), system="y" * 101)
    assert "The prompt has 1,001 characters; the limit is 1,000." in (result.error or "") and model.requests == []


@pytest.mark.integration
async def test_lone_surrogates_and_control_characters_are_harmless():
    async with model_server(completion("Fine.")) as server:
        environ = {"OPENAI_BASE_URL": f"{server.url}/v1", "FERRULE_MODEL": "tiny"}
        async with ToolEngine() as engine:
            engine.register(*ai_tools(environ=environ))
            result = await engine.execute("ask_model", {"prompt": "a\ud800b\x00\x1b[31m" + "\ufffd" * 100})
    assert result.output["answer"] == "Fine." and server.bodies[0]["messages"][0]["content"].startswith("a?b")


@pytest.mark.parametrize(
    ("turn", "message"),
    [
        ("", "gave an empty answer"),
        (ModelReply(text=" \n"), "gave an empty answer"),
        (ModelReply(finish_reason="length"), "reached max_tokens before it gave an answer"),
        (ModelReply(finish_reason="refused"), "declines to answer"),
        (ModelReply(text="I cannot help with that.", finish_reason="refused"), "declines to answer: I cannot help"),
        ({"name": "delete_all", "arguments": {}}, "asks for the tool 'delete_all' instead of answering"),
        (ModelRefused("Check the API key."), "Check the API key."),
        (SetupError("litellm is not installed"), "cannot be asked: litellm is not installed"),
        (ValueError("a bug of the model"), "a bug of the model"),
    ],
)
async def test_a_model_that_gives_no_answer_is_a_failure(turn, message):
    model = ScriptedModel([turn])
    result = await ask(model)
    assert message in (result.error or "") and result.error_type == "execution_error"
    assert len(model.requests) == 1 and "transient" not in result.metadata


async def test_an_answer_that_was_cut_says_so():
    result = await ask(ScriptedModel([ModelReply(text="Once upon a", finish_reason="length")]))
    assert (result.output["answer"], result.output["cut"]) == ("Once upon a", True)


async def test_text_beside_a_tool_call_is_the_answer():
    result = await ask(ScriptedModel([ModelReply(text="It is 3.", tool_calls=(ToolCall(name="search"),))]))
    assert result.output["answer"] == "It is 3."


@pytest.mark.integration
async def test_only_the_engine_retries():
    async with model_server(failure(503, "overloaded", retry_after_ms="1")) as server:
        result = await ask_server(f"{server.url}/v1")
    assert "overloaded" in (result.error or "") and result.metadata["transient"] is True
    assert len(server.requests) == 4


async def test_a_prompt_beyond_the_context_window_is_refused():
    result = await ask(ScriptedModel([RequestTooLong("The window is 8192 tokens.")]))
    assert result.error == "The window is 8192 tokens. Send a shorter prompt."
    assert result.metadata["advice"] == "change_arguments"


@pytest.mark.integration
async def test_a_model_that_hangs_is_given_up_and_its_connection_closed():
    async with model_server(HANG) as server:
        result = await time_out_after_start(
            lambda seconds: ask_server(f"{server.url}/v1", timeout=seconds), lambda: server.requests
        )
        await until(lambda: server.abandoned)
    assert result.error_type == "timeout"


@pytest.mark.integration
async def test_calls_that_a_server_sends_unasked_are_not_made():
    async with model_server(completion(None, [call("delete_all", "{}")])) as server:
        result = await ask_server(f"{server.url}/v1")
    assert "asks for the tool 'delete_all' instead of answering" in (result.error or "")


def needs(config: AskModelConfig | None = None, **environ: str) -> str:
    return ai_tools(config, environ=environ)[0].needs


def test_without_a_model_it_says_which_variables_to_set():
    missing = needs()
    assert "OPENAI_API_KEY or ANTHROPIC_API_KEY" in missing
    assert needs(AskModelConfig(model="offline"), OPENAI_API_KEY="sk-x") == missing
    assert ai_tools(environ={})[1].needs == ""


def test_existing_settings_are_not_listed_as_needs():
    assert needs(OPENAI_API_KEY="sk-x") == "" == needs(ANTHROPIC_API_KEY="sk-x")
    assert needs(OPENAI_BASE_URL="http://localhost:1/v1", FERRULE_MODEL="qwen3") == ""
    assert "set FERRULE_MODEL" in needs(OPENAI_BASE_URL="http://localhost:1/v1")
    assert "OPENAI_API_KEY" in needs(AskModelConfig(model="openai:gpt-5.4"))
    assert needs(AskModelConfig(models={"mine": "openai:gpt-5.4"}), OPENAI_API_KEY="sk-x") == ""


async def test_the_offline_model_is_never_asked():
    tool = ai_tools(environ={})[0]
    with pytest.raises(ExecutionFailed, match="Set up a model: set OPENAI_API_KEY"):
        await tool.target.function("ask_model")(prompt="Hi")
    async with ToolEngine() as engine:
        engine.register(tool)
        result = await engine.execute("ask_model", {"prompt": "Hi"})
    assert "it needs a model: set OPENAI_API_KEY" in (result.error or "")


@pytest.mark.parametrize(
    "settings",
    [{"model": "gpt-5"}, {"models": {"": "offline"}}, {"models": {"x": "openai:"}}, {"max_tokens": 0}, {"timeout": -1}],
)
def test_an_invalid_configuration_is_refused(settings):
    with pytest.raises(SetupError):
        AskModelConfig(**settings)


@pytest.mark.integration
@pytest.mark.parametrize("tool", ["ask_model", "summarize"])
async def test_a_key_that_a_server_repeats_does_not_show(tool, caplog):
    key = "sk-0123456789abcdef"
    async with model_server(failure(401, f"I do not know Bearer {key}.")) as server, ToolEngine() as engine:
        environ = {"OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": key, "FERRULE_MODEL": "tiny"}
        engine.register(*ai_tools(environ=environ))
        parameters = {"ask_model": {"prompt": "Hi."}, "summarize": {"text": "One thing. Another thing."}}
        result = await engine.execute(tool, parameters[tool])
    assert "I do not know Bearer [redacted]" in str(result.to_dict())
    assert key not in str(result.to_dict()) and key not in caplog.text
