"""Time-outs and further attempts."""

import asyncio
import logging

import pytest

from ferrule.errors import ModelRefused, ModelUnavailable, SetupError
from ferrule.messages import user_message
from ferrule.models import AnthropicModel, ModelReply, ModelRequest, OpenAIModel, PatientModel
from ferrule.testing import ScriptedModel
from tests.models.model_server import HANG, Answer, chunks, claude, completion, failure, model_server, said

QUESTION = ModelRequest(messages=[user_message("1 + 2?")])


class Waits(list[float]):
    """Sleeps that take no time."""

    async def sleep(self, seconds: float) -> None:
        self.append(seconds)


async def test_a_server_that_fails_once_is_asked_again():
    waits = Waits()
    async with model_server(failure(500, "oh"), failure(429, "slow", retry_after="7"), completion("3")) as server:
        model = PatientModel(OpenAIModel("m", base_url=server.openai), sleep=waits.sleep, jitter=lambda: 1.0)
        reply = await model.generate(QUESTION)
        await model.aclose()
    assert reply.text == "3" and len(server.asked) == 3
    assert waits == [0.5, 7.0]


async def test_waits_double_up_to_the_longest_and_attempts_are_counted():
    waits = Waits()
    failing = ScriptedModel([ModelUnavailable("busy")], loop=True)
    model = PatientModel(failing, attempts=5, longest_wait=3.0, sleep=waits.sleep, jitter=lambda: 1.0)
    with pytest.raises(ModelUnavailable, match="busy"):
        await model.generate(QUESTION)
    assert waits == [0.5, 1.0, 2.0, 3.0] and len(failing.requests) == 5


async def test_jitter_takes_up_to_half_of_a_wait():
    waits = Waits()
    model = PatientModel(ScriptedModel([ModelUnavailable("busy"), "3"]), sleep=waits.sleep, jitter=lambda: 0.0)
    await model.generate(QUESTION)
    assert waits == [0.25]


async def test_a_refusal_is_final():
    scripted = ScriptedModel([ModelRefused("no"), "3"])
    with pytest.raises(ModelRefused):
        await PatientModel(scripted).generate(QUESTION)
    assert len(scripted.requests) == 1


async def test_a_server_that_wants_too_long_a_wait_is_not_waited_for():
    scripted = ScriptedModel([ModelUnavailable("tomorrow", retry_after=86_400), "3"])
    with pytest.raises(ModelUnavailable) as caught:
        await PatientModel(scripted).generate(QUESTION)
    assert caught.value.retry_after == 86_400 and len(scripted.requests) == 1


async def test_a_model_that_hangs_is_left_and_asked_again():
    async with model_server(HANG, completion("3")) as server:
        model = PatientModel(OpenAIModel("m", base_url=server.openai), timeout=1, first_wait=0.01)
        assert (await model.generate(QUESTION)).text == "3"
        await asyncio.wait_for(server.client_left.wait(), 5)
        await model.aclose()


async def test_a_time_out_says_how_long_was_waited():
    async with model_server(HANG) as server:
        model = PatientModel(AnthropicModel("c", base_url=server.url), timeout=0.5, attempts=1)
        with pytest.raises(ModelUnavailable, match=r"'anthropic:c' did not answer within 0\.5 s"):
            await model.generate(QUESTION)
        await model.aclose()


async def test_text_that_was_handed_on_is_not_handed_on_again():
    heard: list[str] = []
    cut = Answer(events=chunks({"content": "It is"}, finish=None)[:1], then="cut")
    async with model_server(cut, Answer(events=chunks({"content": "It is 3."}))) as server:
        model = PatientModel(OpenAIModel("m", base_url=server.openai), first_wait=0.01)
        with pytest.raises(ModelUnavailable):
            await model.generate(QUESTION, heard.append)
        await model.aclose()
    assert heard == ["It is"] and len(server.asked) == 1


async def test_a_stream_that_breaks_before_any_text_is_asked_for_again():
    heard: list[str] = []
    cut = Answer(events=chunks({"role": "assistant"}, finish=None)[:1], then="cut")
    async with model_server(cut, Answer(events=chunks({"content": "3"}))) as server:
        model = PatientModel(OpenAIModel("m", base_url=server.openai), first_wait=0.01)
        assert (await model.generate(QUESTION, heard.append)).text == "3"
        await model.aclose()
    assert heard == ["3"]


@pytest.mark.parametrize("hangs", [HANG, Answer(events=chunks({"content": "It"}, finish=None)[:1], then="hang")])
async def test_a_cancelled_request_ends_at_once_and_closes_its_connection(hangs):
    async with model_server(hangs) as server:
        model = PatientModel(OpenAIModel("m", base_url=server.openai))
        task = asyncio.create_task(model.generate(QUESTION, print if hangs.events else None))
        while not server.asked:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.client_left.wait(), 5)
        await model.aclose()


async def test_a_cancelled_stream_of_claude_closes_its_connection():
    heard = asyncio.Event()
    begun = Answer(events=claude(said("It is"), stop_reason=None).events, then="hang")
    async with model_server(begun) as server:
        model = PatientModel(AnthropicModel("c", base_url=server.url))
        task = asyncio.create_task(model.generate(QUESTION, lambda _: heard.set()))
        await heard.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.client_left.wait(), 5)
        await model.aclose()


async def test_a_wait_between_attempts_can_be_cancelled():
    model = PatientModel(ScriptedModel([ModelUnavailable("busy", retry_after=50)], loop=True))
    task = asyncio.create_task(model.generate(QUESTION))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_further_attempts_are_logged(caplog):
    model = PatientModel(ScriptedModel([ModelUnavailable("busy"), "3"]), first_wait=0.001)
    with caplog.at_level(logging.WARNING, "ferrule.models"):
        await model.generate(QUESTION)
    assert "attempt=<1>" in caplog.text and "error=<busy>" in caplog.text


async def test_a_time_out_of_the_model_itself_is_not_taken_for_ours():
    with pytest.raises(TimeoutError, match="mine"):
        await PatientModel(ScriptedModel([TimeoutError("mine")])).generate(QUESTION)


async def test_a_model_without_anything_to_close_can_be_closed():
    class Plain:
        name = "plain"

        async def generate(self, request, on_text=None):
            return ModelReply(text="3")

    model = PatientModel(Plain())
    await model.aclose()
    assert model.name == "plain"


@pytest.mark.parametrize("wrong", [{"timeout": 0.0}, {"attempts": 0}])
def test_settings_that_cannot_work_are_told(wrong):
    with pytest.raises(SetupError, match="at least 1 attempt"):
        PatientModel(ScriptedModel([]), **wrong)
