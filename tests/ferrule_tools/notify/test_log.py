"""`notify` into a log."""

import asyncio
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from ferrule import ToolEngine
from ferrule.core.call import ToolExecutionResult
from ferrule.errors import SetupError
from ferrule_tools.notify import ChannelConfig, NotifyConfig, notify_tools


async def notify(root: Path, path: str, message: str = "The disk is full.", **more: Any) -> ToolExecutionResult:
    config = NotifyConfig(channels={"file": ChannelConfig(kind="log", path=path)})
    async with ToolEngine() as engine:
        engine.register(*notify_tools(config, root=root))
        return await engine.execute("notify", {"message": message, **more})


async def test_each_message_is_one_line_of_json(tmp_path):
    await notify(tmp_path, "logs/notices.jsonl", "one\r\ntwo\u2028three \x1b[31m\ud800", title="磁盘", level="error")
    result = await notify(tmp_path, "logs/notices.jsonl", '"}\n{"level": "forged"}')
    assert result.output == {"sent": True, "channel": "file", "path": "logs/notices.jsonl"}
    lines = (tmp_path / "logs/notices.jsonl").read_bytes().split(b"\n")
    first, second = (json.loads(line) for line in lines[:2])
    assert lines[2:] == [b""]
    assert (first["title"], first["message"]) == ("磁盘", "one\ntwo\u2028three [31m?")
    assert (first["level"], second["level"], second["message"]) == ("error", "info", '"}\n{"level": "forged"}')


async def test_concurrent_messages_stay_whole(tmp_path):
    config = NotifyConfig(channels={"file": ChannelConfig(kind="log", path="notices.jsonl")})
    async with ToolEngine() as engine:
        engine.register(*notify_tools(config, root=tmp_path))
        calls = [engine.execute("notify", {"message": str(number) * 2_000}) for number in range(10)]
        assert all(result.is_success for result in await asyncio.gather(*calls))
    lines = (tmp_path / "notices.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["message"][0] for line in lines) == list("0123456789")


async def test_a_truncated_line_does_not_affect_the_next(tmp_path):
    (tmp_path / "notices.jsonl").write_bytes(b'{"half a li')
    await notify(tmp_path, "notices.jsonl")
    assert json.loads((tmp_path / "notices.jsonl").read_text().splitlines()[-1])["message"] == "The disk is full."


async def test_a_link_or_a_pipe_is_not_written_to(tmp_path):
    outside = tmp_path / "outside.txt"
    outside.write_text("mine\n")
    root = tmp_path / "project"
    (root / "logs").mkdir(parents=True)
    os.symlink(outside, root / "link.jsonl")
    os.link(outside, root / "hard.jsonl")
    os.mkfifo(root / "pipe.jsonl")
    os.symlink(tmp_path, root / "up")
    for path in ("link.jsonl", "hard.jsonl", "pipe.jsonl", "logs", "up/new.jsonl"):
        assert not (await notify(root, path)).is_success, path
    assert outside.read_text() == "mine\n" and not (tmp_path / "new.jsonl").exists()


@pytest.mark.parametrize("path", ["/etc/passwd", "../up.jsonl", "a/../../b", ".", "a\0b"])
def test_a_path_that_leads_out_of_the_project_is_refused(path):
    with pytest.raises(SetupError, match="path must be inside the project's folder"):
        ChannelConfig(kind="log", path=path)


async def test_without_a_path_the_logger_gets_it(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "ferrule.notify"):
        result = await notify(tmp_path, "", "line one\nline two", level="warning")
    [record] = [each for each in caplog.records if each.name == "ferrule.notify"]
    assert result.is_success and record.levelno == logging.WARNING
    assert json.loads(record.getMessage())["message"] == "line one\nline two"


async def test_a_logger_without_handlers_is_a_failure(tmp_path):
    result = await notify(tmp_path, "", "only information")
    assert "The logger 'ferrule.notify' has no handler for level INFO" in (result.error or "")
