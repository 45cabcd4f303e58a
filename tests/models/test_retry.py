"""Timeouts and retries of models."""

import asyncio
from pathlib import Path

import pytest

from ferrule import Agent
from ferrule.agent.budget import BudgetedModel, RunBudget
from ferrule.batch.waiting_model import WaitingModel
from ferrule.core.messages import user_message
from ferrule.core.model import can_end_reply, can_reason
from ferrule.errors import ModelRefused, ModelUnavailable, SetupError
from ferrule.models import AnthropicModel, ModelRequest, OpenAIModel, RetryingModel
from ferrule.testing import RecordingModel, ScriptedModel
from tests.models.model_server import chunks, claude, completion, failure, model_server, text_block
from tests.support.http_servers import HANG, Answer
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting import until

QUESTION = ModelRequest(messages=[user_message("1 + 2?")])


class Waits(list[float]):
    """Sleeps that take no time."""

    async def sleep(self, seconds: float) -> None:
        self.append(seconds)


@pytest.mark.integration
async def test_a_server_that_fails_is_asked_again():
    waits = Waits()
    async with model_server(failure(500, "oh"), failure(429, "slow", retry_after="7"), completion("3")) as server:
        model = RetryingModel(OpenAIModel("m", base_url=f"{server.url}/v1"), sleep=waits.sleep, jitter=lambda: 1.0)
        reply = await model.generate(QUESTION)
        await model.aclose()
    assert reply.text == "3" and len(server.requests) == 3
    assert waits == [0.5, 7.0]


@pytest.mark.integration
@pytest.mark.parametrize("make", [OpenAIModel, AnthropicModel])
async def test_an_agent_asks_the_model_object_it_was_given_again(make):
    """As it does for a model that is given by name."""
    answer = completion("3") if make is OpenAIModel else claude(text_block("3"))
    async with model_server(failure(429, "slow", retry_after="0"), answer) as server:
        model = make("m", base_url=f"{server.url}/v1" if make is OpenAIModel else server.url, api_key="k")
        reply = await Agent([], model).run("1 + 2?")
        await model.aclose()
    assert reply.text == "3" and len(server.requests) == 2


@pytest.mark.parametrize(("jitter", "expected"), [(1.0, [0.5, 1.0, 2.0, 3.0]), (0.0, [0.25, 0.5, 1.0, 1.5])])
async def test_waits_double_up_to_max_wait_and_attempts_are_limited(jitter, expected):
    waits = Waits()
    failing = ScriptedModel([ModelUnavailable("busy")], loop=True)
    model = RetryingModel(failing, attempts=5, max_wait=3.0, sleep=waits.sleep, jitter=lambda: jitter)
    with pytest.raises(ModelUnavailable, match="busy"):
        await model.generate(QUESTION)
    assert waits == expected and len(failing.requests) == 5


async def test_a_refusal_is_final():
    scripted = ScriptedModel([ModelRefused("no"), "3"])
    with pytest.raises(ModelRefused):
        await RetryingModel(scripted).generate(QUESTION)
    assert len(scripted.requests) == 1


async def test_a_retry_after_above_max_wait_fails_immediately():
    scripted = ScriptedModel([ModelUnavailable("tomorrow", retry_after=86_400), "3"])
    with pytest.raises(ModelUnavailable) as caught:
        await RetryingModel(scripted).generate(QUESTION)
    assert caught.value.retry_after == 86_400 and len(scripted.requests) == 1


@in_virtual_time
async def test_a_model_that_times_out_is_asked_again():
    class HangingOnce(ScriptedModel):
        async def generate(self, request, on_text=None):
            reply = await super().generate(request, on_text)
            if len(self.requests) == 1:
                await asyncio.Event().wait()
            return reply

    model = RetryingModel(HangingOnce(["2", "3"]), timeout=0.05, sleep=Waits().sleep)
    assert (await model.generate(QUESTION)).text == "3"


@pytest.mark.integration
async def test_there_is_no_retry_after_text_was_streamed():
    pieces: list[str] = []
    cut = Answer(events=chunks({"content": "It is"}, finish=None)[:1], then="cut")
    async with model_server(cut, Answer(events=chunks({"content": "It is 3."}))) as server:
        model = RetryingModel(OpenAIModel("m", base_url=f"{server.url}/v1"), first_wait=0.01)
        with pytest.raises(ModelUnavailable):
            await model.generate(QUESTION, pieces.append)
        await model.aclose()
    assert pieces == ["It is"] and len(server.requests) == 1


@pytest.mark.integration
@pytest.mark.parametrize(
    ("make", "hangs"),
    [
        (OpenAIModel, HANG),
        (OpenAIModel, Answer(events=chunks({"content": "It"}, finish=None)[:1], then="hang")),
        (AnthropicModel, Answer(events=claude(text_block("It is"), stop_reason=None).events, then="hang")),
    ],
)
async def test_a_cancelled_request_ends_and_closes_its_connection(make, hangs):
    pieces: list[str] = []
    async with model_server(hangs) as server:
        model = RetryingModel(make("m", base_url=f"{server.url}/v1" if make is OpenAIModel else server.url))
        task = asyncio.create_task(model.generate(QUESTION, None if hangs is HANG else pieces.append))
        await until(lambda: server.requests if hangs is HANG else pieces)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: server.abandoned)
        await model.aclose()


async def test_a_wait_between_attempts_can_be_cancelled():
    is_waiting = asyncio.Event()

    async def sleep(seconds: float) -> None:
        is_waiting.set()
        await asyncio.Event().wait()

    model = RetryingModel(ScriptedModel([ModelUnavailable("busy", retry_after=50)], loop=True), sleep=sleep)
    task = asyncio.create_task(model.generate(QUESTION))
    await is_waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_timeout_error_of_the_model_itself_is_not_changed():
    with pytest.raises(TimeoutError, match="mine"):
        await RetryingModel(ScriptedModel([TimeoutError("mine")])).generate(QUESTION)


@pytest.mark.parametrize("wrong", [{"timeout": 0.0}, {"attempts": 0}])
def test_invalid_settings_are_errors(wrong):
    with pytest.raises(SetupError, match="at least 1 attempt"):
        RetryingModel(ScriptedModel([]), **wrong)


@pytest.mark.integration
async def test_text_that_its_receiver_takes_back_does_not_prevent_another_attempt():
    class Receiver:
        text = ""
        restarts = 0

        def __call__(self, piece: str) -> None:
            self.text += piece

        def restart(self) -> bool:
            self.text, self.restarts = "", self.restarts + 1
            return True

    receiver, waits = Receiver(), Waits()
    cut = Answer(events=chunks({"content": "It is"})[:1], then="cut")
    async with model_server(cut, Answer(events=chunks({"content": "It is 3."}))) as server:
        model = RetryingModel(OpenAIModel("m", base_url=f"{server.url}/v1"), sleep=waits.sleep)
        assert model.can_end_reply
        reply = await model.generate(QUESTION, receiver)
        await model.aclose()
    assert (reply.text, receiver.text, receiver.restarts) == ("It is 3.", "It is 3.", 1)


def test_a_wrapper_has_the_abilities_of_its_model(tmp_path: Path):
    class EndingModel(ScriptedModel):
        can_reason = False
        can_end_reply = True

    model = EndingModel(["hello"])
    for wrapper in (RetryingModel(model), WaitingModel(model), BudgetedModel(model, RunBudget())):
        assert (wrapper.name, can_reason(wrapper), can_end_reply(wrapper)) == (model.name, False, True)
    recording = RecordingModel(model, tmp_path / "replies.json")
    assert (can_reason(recording), can_end_reply(recording)) == (False, False)  # a recorded reply is complete
