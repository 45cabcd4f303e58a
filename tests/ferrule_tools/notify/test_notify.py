"""`notify` as a tool: its channels, what it needs, and how it is called."""

import asyncio
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ferrule import ToolEngine, UnifiedToolLibrary
from ferrule.core.call import ToolExecutionResult
from ferrule.core.spec import Tool
from ferrule.errors import SetupError
from ferrule_tools.notify import ChannelConfig, NotifyConfig, notify_tools

FILE = ChannelConfig(kind="log", path="notices.jsonl")
HOOK = ChannelConfig(kind="webhook", url="${CHAT_HOOK}", format="slack")
MAIL = ChannelConfig(kind="email", host="${MAIL_HOST}", sender="a@example.com", to=["b@example.com"])


def build_tool(environ: Mapping[str, str] | None = None, **channels: ChannelConfig) -> Tool:
    [tool] = notify_tools(NotifyConfig(channels=channels), environ=environ or {})
    return tool


def test_without_a_channel_it_says_what_it_needs():
    assert "write [tools.notify.channels.<name>] in ferrule.toml" in build_tool().needs
    assert build_tool(file=FILE).needs == ""


def test_variables_that_are_missing_are_needed_unless_another_channel_is_ready():
    assert "for the channel 'chat': the environment variable 'CHAT_HOOK' is not set" in build_tool(chat=HOOK).needs
    assert "'MAIL_HOST'" in build_tool(chat=HOOK, mail=MAIL).needs
    assert build_tool({"CHAT_HOOK": "https://example.com"}, chat=HOOK).needs == ""
    assert build_tool(chat=HOOK, file=FILE).needs == ""


def test_mail_needs_its_package(monkeypatch):
    monkeypatch.setattr("ferrule_tools._tool_setup.find_spec", lambda name: None)
    mail = replace(MAIL, host="mail.example")
    assert (
        build_tool(mail=mail).needs == "for the channel 'mail': the package aiosmtplib: pip install 'ferrule[notify]'"
    )
    assert build_tool(mail=mail, file=FILE).needs == ""


def test_it_is_not_repeatable():
    spec = build_tool(file=FILE).spec
    assert not spec.effects.repeatable and spec.category == "notification"
    assert spec.bucket_of(spec.capabilities[0]) == "notification"


def test_the_schema_lists_channels_and_no_addresses():
    [capability] = build_tool(chat=HOOK, mail=MAIL).spec.capabilities
    assert capability.schema["properties"]["channel"]["description"].endswith("chat (webhook), mail (email)")
    assert "context" not in capability.schema["properties"]
    assert "example.com" not in json.dumps(capability.schema)


async def test_the_channel_is_optional_only_if_there_is_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with UnifiedToolLibrary() as library:
        library.register(build_tool(ops=FILE, logbook=FILE))
        unnamed = await library.execute_tool("notify", parameters={"message": "Hello"})
        wrong = await library.execute_tool("notify", parameters={"message": "Hello", "channel": "opps"})
        right = await library.execute_tool("notify", parameters={"message": "Hello", "channel": "ops"})
    assert unnamed.error == "Say which channel to use: ops, logbook."
    assert wrong.error == "There is no channel 'opps'. Did you mean 'ops'? The channels are: ops, logbook."
    assert wrong.metadata["advice"] == "change_arguments" and right.is_success


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"message": ""}, "is empty"),
        ({"message": " \r\n\0\t"}, "is empty"),
        ({"message": "x" * 10_001}, "the limit is 10,000"),
        ({"message": "x", "title": "x" * 201}, "the limit is 200"),
        ({"message": "x", "level": "fatal"}, "level"),
        ({"title": "no message"}, "message"),
    ],
)
async def test_invalid_messages_are_refused(tmp_path, parameters, message):
    async with UnifiedToolLibrary() as library:
        library.register(*notify_tools(NotifyConfig(channels={"file": FILE}), root=tmp_path))
        result = await library.execute_tool("notify", parameters=parameters)
    assert message in (result.error or "") and not (tmp_path / "notices.jsonl").exists()


async def test_a_model_cannot_choose_an_address(tmp_path):
    async with UnifiedToolLibrary() as library:
        library.register(*notify_tools(NotifyConfig(channels={"file": FILE}), root=tmp_path))
        parameters: dict[str, Any] = {"message": "x", "to": ["victim@example.com"], "url": "https://evil.example"}
        await library.execute_tool("notify", parameters=parameters)
    assert not (tmp_path / "notices.jsonl").exists() or "example" not in (tmp_path / "notices.jsonl").read_text()


async def test_a_channel_that_is_not_set_up_fails_when_used(tmp_path):
    channels = {"file": FILE, "chat": HOOK}
    async with UnifiedToolLibrary() as library:
        library.register(*notify_tools(NotifyConfig(channels=channels), root=tmp_path, environ={}))
        result = await library.execute_tool("notify", parameters={"message": "Hello", "channel": "chat"})
    assert "The channel 'chat' is not set up: the environment variable 'CHAT_HOOK'" in (result.error or "")


@pytest.mark.parametrize("timeout", [0, -1, 601, float("nan")])
def test_an_invalid_timeout_is_refused(timeout):
    with pytest.raises(SetupError, match="timeout must be"):
        NotifyConfig(timeout=timeout)


# Logs


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
