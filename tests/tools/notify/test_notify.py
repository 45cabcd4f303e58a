"""`notify` as a tool: its channels, what it needs, and how it is called."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from ferrule import Agent, UnifiedToolLibrary
from ferrule.errors import SetupError
from ferrule.spec import Tool
from ferrule.testing import ScriptedModel
from ferrule.tools.notify import ChannelConfig, NotifyConfig, notify_tools

FILE = ChannelConfig(kind="log", path="notices.jsonl")
HOOK = ChannelConfig(kind="webhook", url="${CHAT_HOOK}", format="slack")
MAIL = ChannelConfig(kind="email", host="${MAIL_HOST}", sender="a@example.com", to=["b@example.com"])


def made(environ: Mapping[str, str] | None = None, **channels: ChannelConfig) -> Tool:
    [tool] = notify_tools(NotifyConfig(channels=channels), environ=environ or {})
    return tool


def test_without_a_channel_it_says_what_it_needs():
    assert "write [tools.notify.channels.<name>] in ferrule.toml" in made().needs
    assert made(file=FILE).needs == ""


def test_variables_that_are_missing_are_needed_unless_another_channel_is_ready():
    assert "for the channel 'chat' the environment variable 'CHAT_HOOK' is not set" in made(chat=HOOK).needs
    assert "'MAIL_HOST'" in made(chat=HOOK, mail=MAIL).needs
    assert made({"CHAT_HOOK": "https://example.com"}, chat=HOOK).needs == ""
    assert made(chat=HOOK, file=FILE).needs == ""


def test_mail_needs_its_package(monkeypatch):
    monkeypatch.setattr("ferrule.tools.notify.box.find_spec", lambda name: None)
    mail = replace(MAIL, host="mail.example")
    assert made(mail=mail).needs == "for the channel 'mail' the package aiosmtplib: pip install 'ferrule[notify]'"
    assert made(mail=mail, file=FILE).needs == ""


def test_it_promises_nothing_about_repeating_it():
    spec = made(file=FILE).spec
    assert not spec.effects.repeatable and spec.category == "notification"
    assert spec.bucket_of(spec.capabilities[0]) == "notification"


def test_models_read_which_channels_there_are_and_no_address():
    [capability] = made(chat=HOOK, mail=MAIL).spec.capabilities
    assert capability.schema["properties"]["channel"]["description"].endswith("chat (webhook), mail (email)")
    assert "context" not in capability.schema["properties"]
    assert "example.com" not in json.dumps(capability.schema)


async def test_one_channel_need_not_be_named_and_of_several_one_must(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with UnifiedToolLibrary() as library:
        library.register(made(ops=FILE, logbook=FILE))
        unnamed = await library.execute_tool("notify", parameters={"message": "Hello"})
        wrong = await library.execute_tool("notify", parameters={"message": "Hello", "channel": "opps"})
        right = await library.execute_tool("notify", parameters={"message": "Hello", "channel": "ops"})
    assert unnamed.error == "Say which channel to use: ops, logbook."
    assert wrong.error == "There is no channel 'opps'. Did you mean 'ops'? The channels are: ops, logbook."
    assert wrong.metadata["advice"] == "change_arguments" and right.is_success


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"message": ""}, "is empty"),
        ({"message": " \r\n\0\t"}, "is empty"),
        ({"message": "x" * 10_001}, "10,000 is the most"),
        ({"message": "x", "title": "x" * 201}, "200 is the most"),
        ({"message": "x", "level": "fatal"}, "level"),
        ({"title": "no message"}, "message"),
    ],
)
async def test_a_message_that_cannot_be_sent_is_told(tmp_path, said, told):
    async with UnifiedToolLibrary() as library:
        library.register(*notify_tools(NotifyConfig(channels={"file": FILE}), root=tmp_path))
        result = await library.execute_tool("notify", parameters=said)
    assert told in (result.error or "") and not (tmp_path / "notices.jsonl").exists()


async def test_an_address_that_a_model_makes_up_goes_nowhere(tmp_path):
    async with UnifiedToolLibrary() as library:
        library.register(*notify_tools(NotifyConfig(channels={"file": FILE}), root=tmp_path))
        said: dict[str, Any] = {"message": "x", "to": ["victim@example.com"], "url": "https://evil.example"}
        await library.execute_tool("notify", parameters=said)
    assert not (tmp_path / "notices.jsonl").exists() or "example" not in (tmp_path / "notices.jsonl").read_text()


async def test_an_agent_tells_people_something(tmp_path):
    async with UnifiedToolLibrary() as library:
        library.register(*notify_tools(NotifyConfig(channels={"file": FILE}), root=tmp_path))
        model = ScriptedModel([{"name": "notify", "arguments": {"message": "备份完成"}}, "Done."])
        answer = await Agent(library, model).run("Tell the team that the backup is done.")
    assert answer.text == "Done."
    assert json.loads((tmp_path / "notices.jsonl").read_text())["message"] == "备份完成"


async def test_a_channel_that_is_not_set_up_is_told_when_it_is_used(tmp_path):
    channels = {"file": FILE, "chat": HOOK}
    async with UnifiedToolLibrary() as library:
        library.register(*notify_tools(NotifyConfig(channels=channels), root=tmp_path, environ={}))
        result = await library.execute_tool("notify", parameters={"message": "Hello", "channel": "chat"})
    assert "The channel 'chat' is not set up: the environment variable 'CHAT_HOOK'" in (result.error or "")


@pytest.mark.parametrize("timeout", [0, -1, 601, float("nan")])
def test_a_time_limit_that_is_none_is_refused(timeout):
    with pytest.raises(SetupError, match="timeout must be"):
        NotifyConfig(timeout=timeout)
