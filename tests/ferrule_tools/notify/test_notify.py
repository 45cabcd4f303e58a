"""`notify` as a tool: its channels, what it needs, and how it is called."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from ferrule import UnifiedToolLibrary
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
    assert "for the channel 'chat' the environment variable 'CHAT_HOOK' is not set" in build_tool(chat=HOOK).needs
    assert "'MAIL_HOST'" in build_tool(chat=HOOK, mail=MAIL).needs
    assert build_tool({"CHAT_HOOK": "https://example.com"}, chat=HOOK).needs == ""
    assert build_tool(chat=HOOK, file=FILE).needs == ""


def test_mail_needs_its_package(monkeypatch):
    monkeypatch.setattr("ferrule_tools._tool_setup.find_spec", lambda name: None)
    mail = replace(MAIL, host="mail.example")
    assert build_tool(mail=mail).needs == "for the channel 'mail' the package aiosmtplib: pip install 'ferrule[notify]'"
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
