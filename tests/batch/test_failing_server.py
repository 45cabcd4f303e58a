"""A batch with a model behind a real HTTP server that fails: no task is lost, and none is spent on a wrong key."""

import asyncio
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ferrule import UnifiedToolLibrary
from ferrule.agent import RunLimits
from ferrule.batch import Batch, BatchDirectory, BatchResult, BatchTask, LocalBackend, WaitingModel
from ferrule.engine import ToolEngineConfig
from ferrule.models.openai import OpenAIModel
from ferrule.models.retry import RetryingModel
from tests.batch.scripted_batch import read_lines
from tests.models.model_server import chunks, failure, model_server
from tests.support.http_servers import HANG, Answer
from tests.support.ports import reserved_port
from tests.support.waiting import until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(find_spec("openai") is None, reason="pip install 'ferrule[openai]'"),
]

DONE = Answer(events=chunks({"role": "assistant", "content": "done"}))


def make_model(port: int, *, timeout: float = 60.0, **options: Any) -> WaitingModel:
    model = OpenAIModel("gpt-test", api_key="k", base_url=f"http://127.0.0.1:{port}/v1")
    return WaitingModel(RetryingModel(model, timeout=timeout), **options)


async def run_tasks(out: Path, model: WaitingModel, number: int = 6) -> BatchResult:
    tasks = [BatchTask(id=f"t{n}", task=f"say {n}") for n in range(number)]
    with BatchDirectory(out).open({"model": model.name}) as directory:
        async with UnifiedToolLibrary(ToolEngineConfig(builtin_tools=False)) as library:
            backend = LocalBackend(library, model, limits=RunLimits(seconds=600.0))
            batch = Batch(directory, backend, model=model, concurrency=3)
            try:
                return await batch.run(tasks, total=number)
            finally:
                await backend.aclose()


async def test_errors_of_the_server_cost_no_task(tmp_path):
    answers = [
        failure(429, "slow down", Retry_After="0"),
        failure(500, "oops"),
        failure(503, "overloaded"),
        Answer(then="cut"),
        DONE,
    ]
    async with model_server(*answers) as server:
        result = await run_tasks(tmp_path, make_model(server.port))
    assert result.summary["states"] == {"finished": 6}
    assert {line["answer"] for line in read_lines(tmp_path)} == {"done"}
    assert result.progress.retries["rate_limit"] == 1 and result.progress.retries["server_error"] == 2
    assert sum(request["attempts"] for line in read_lines(tmp_path) for request in line["requests"]) == 10


async def test_a_server_that_is_not_there_yet_is_waited_for(tmp_path):
    with reserved_port() as port:
        model = make_model(port)
        running = asyncio.create_task(run_tasks(tmp_path, model))
        await until(lambda: model.retries["unreachable"] >= 2)
        async with model_server(DONE, port=port):
            result = await running
    assert result.summary["states"] == {"finished": 6} and result.stopped == ""


async def test_a_request_without_a_reply_is_sent_again(tmp_path):
    async with model_server(HANG, DONE) as server:
        model = make_model(server.port, timeout=0.1)
        running = asyncio.create_task(run_tasks(tmp_path, model))
        await until(lambda: model.retries["timeout"])
        assert isinstance(model.model, RetryingModel)
        model.model.timeout = 60.0  # the other requests have replies, however slow the machine is
        result = await running
    assert result.summary["states"] == {"finished": 6}
    assert result.progress.retries["timeout"] >= 1


@pytest.mark.parametrize(("status", "text"), [(401, "wrong key"), (404, "no such model")])
async def test_a_wrong_key_or_model_stops_the_batch_and_spends_no_task(tmp_path, status, text):
    async with model_server(failure(status, text)) as server:
        result = await run_tasks(tmp_path, make_model(server.port))
        assert text in result.stopped and result.summary["tasks"] == 0
    async with model_server(DONE) as server:  # put right
        result = await run_tasks(tmp_path, make_model(server.port))
    assert result.summary["states"] == {"finished": 6}


async def test_a_server_that_stays_away_stops_the_batch_and_the_same_command_continues(tmp_path):
    with reserved_port() as port:
        result = await run_tasks(tmp_path, make_model(port, patience=0.2))
    assert result.stopped.startswith("no reply for") and "unreachable" in result.stopped
    assert (result.summary["tasks"], result.summary["is_complete"]) == (0, False)
    async with model_server(DONE) as server:
        result = await run_tasks(tmp_path, make_model(server.port))
    assert result.summary["states"] == {"finished": 6}
