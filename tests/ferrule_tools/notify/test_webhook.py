"""`notify` by webhook, against a real server that speaks each service's format."""

import base64
import hashlib
import hmac
import json
import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from ferrule import ToolEngine
from ferrule.core.call import ToolExecutionResult
from ferrule.errors import SetupError
from ferrule_tools.notify import ChannelConfig, NotifyConfig, notify_tools
from tests.support.http_servers import serve_http
from tests.support.waiting import time_out_after_start

pytestmark = pytest.mark.integration

TAKEN = {
    "json": b"",
    "slack": b"ok",
    "discord": b"",
    "feishu": b'{"code": 0, "msg": "success", "data": {}}',
    "dingtalk": b'{"errcode": 0, "errmsg": "ok"}',
    "wecom": b'{"errcode": 0, "errmsg": "ok"}',
}


async def notify(channel: ChannelConfig, message: str = "The disk is full.", **more: Any) -> ToolExecutionResult:
    timeout, environ = more.pop("timeout", 120.0), more.pop("environ", {})
    config = NotifyConfig(channels={"ops": channel}, timeout=timeout)
    async with ToolEngine() as engine:
        engine.register(*notify_tools(config, environ=environ))
        return await engine.execute("notify", {"message": message, **more})


def says(body: bytes, status: int = 200, **headers: str) -> Any:
    return lambda request: (status, {"Content-Type": "application/json", **headers}, body)


async def sent(form: str, message: str, **more: Any) -> Any:
    """The JSON that arrives."""
    async with serve_http(says(TAKEN[form])) as server:
        result = await notify(ChannelConfig(kind="webhook", url=f"{server.url}/hook", format=form), message, **more)
    assert result.output == {"sent": True, "channel": "ops"}, result.error
    [request] = server.requests
    assert (request.method, request.headers["content-type"]) == ("POST", "application/json; charset=utf-8")
    return json.loads(request.body)


async def test_the_json_format_has_all_fields():
    body = await sent("json", "磁盘已满", title="web-1", level="warning")
    assert body.pop("time").endswith("+00:00")
    assert body == {"title": "web-1", "message": "磁盘已满", "level": "warning"}


async def test_slack_text_mentions_nobody_and_previews_no_link():
    body = await sent("slack", "<!channel> a & b <https://evil.example/?q=secret|click>", title="web-1")
    assert body["text"] == "web-1\n&lt;!channel&gt; a &amp; b &lt;https://evil.example/?q=secret|click&gt;"
    assert (body["unfurl_links"], body["unfurl_media"]) == (False, False)


async def test_discord_text_mentions_nobody():
    body = await sent("discord", "@everyone look", level="error")
    assert body == {"content": "[ERROR] @everyone look", "allowed_mentions": {"parse": []}, "flags": 4}


async def test_feishu_post_mentions_nobody():
    body = await sent("feishu", '<at user_id="all">所有人</at>\n磁盘已满', title="服务器", level="warning")
    assert body["msg_type"] == "post"
    post = body["content"]["post"]["zh_cn"]
    assert post["title"] == "[WARNING] 服务器"
    assert post["content"] == [[{"tag": "text", "text": '<at user_id="all">所有人</at>\n磁盘已满'}]]


async def test_dingtalk_gets_text():
    body = await sent("dingtalk", "@所有人 磁盘已满", title="服务器")
    assert body == {"msgtype": "text", "text": {"content": "服务器\n@所有人 磁盘已满"}, "at": {"isAtAll": False}}


async def test_wecom_text_mentions_nobody():
    body = await sent("wecom", "<@all> 磁盘已满")
    assert body == {"msgtype": "text", "text": {"content": "<\u200b@all> 磁盘已满"}}


@pytest.mark.parametrize(
    ("form", "answer", "may_pass"),
    [
        ("feishu", {"code": 19024, "msg": "Key Words Not Found"}, False),
        ("feishu", {"code": 11232, "msg": "frequency limited"}, True),
        ("feishu", {"code": ["odd"], "msg": "odd"}, False),
        ("dingtalk", {"errcode": 310000, "errmsg": "keywords not in content"}, False),
        ("dingtalk", {"errcode": 130101, "errmsg": "send too fast"}, True),
        ("wecom", {"errcode": 93000, "errmsg": "invalid webhook url"}, False),
        ("wecom", {"errcode": 45009, "errmsg": "api freq out of limit"}, True),
    ],
)
async def test_a_code_in_an_answer_of_status_200_is_a_failure(form, answer, may_pass):
    async with serve_http(says(json.dumps(answer).encode())) as server:
        result = await notify(ChannelConfig(kind="webhook", url=server.url, format=form))
    words, code = answer.get("msg") or answer["errmsg"], answer.get("code") or answer["errcode"]
    assert f"the channel 'ops' did not accept the message: {words} " in (result.error or "")
    assert f" {code}). Nothing was sent." in (result.error or "")
    assert result.metadata.get("transient", False) is may_pass and "outcome" not in result.metadata


@pytest.mark.parametrize("answer", [b"", b"ok", b"[]", b"null", b"{}", b"<html>", b"[" * 50_000, b"\xff\xfe"])
async def test_after_an_invalid_answer_the_outcome_is_unknown(answer):
    async with serve_http(says(answer)) as server:
        result = await notify(ChannelConfig(kind="webhook", url=server.url, format="feishu"))
    assert "returned a response that feishu does not use" in (result.error or "")
    assert result.metadata["outcome"] == "unknown"


async def test_a_request_to_feishu_is_signed_in_its_body():
    async with serve_http(says(TAKEN["feishu"])) as server:
        channel = ChannelConfig(kind="webhook", url=server.url, format="feishu", secret="${FEISHU_SECRET}")
        await notify(channel, environ={"FEISHU_SECRET": "SEC-feishu"})
    body = json.loads(server.requests[0].body)
    key = f"{body['timestamp']}\nSEC-feishu".encode()
    assert base64.b64decode(body["sign"]) == hmac.new(key, b"", hashlib.sha256).digest()
    assert len(body["timestamp"]) == 10


async def test_a_request_to_dingtalk_is_signed_in_its_address():
    async with serve_http(says(TAKEN["dingtalk"])) as server:
        url = f"{server.url}/robot/send?access_token=abc"
        result = await notify(ChannelConfig(kind="webhook", url=url, format="dingtalk", secret="SEC+ding/talk"))
    assert result.is_success, result.error
    query = {name: values[0] for name, values in parse_qs(urlsplit(server.requests[0].path).query).items()}
    text = f"{query['timestamp']}\nSEC+ding/talk".encode()
    assert base64.b64decode(query["sign"]) == hmac.new(b"SEC+ding/talk", text, hashlib.sha256).digest()
    assert query["access_token"] == "abc" and len(query["timestamp"]) == 13


async def test_address_and_headers_come_from_the_environment_and_never_show():
    async with serve_http(says(b"no such hook: services/T0/B0/s3cret", 404)) as server:
        channel = ChannelConfig(kind="webhook", url="${HOOK}", headers={"X-Token": "Bearer ${TOKEN}"})
        environ = {"HOOK": f"{server.url}/services/T0/B0/s3cret", "TOKEN": "t0ken-t0ken"}
        result = await notify(channel, environ=environ)
    [request] = server.requests
    assert (request.path, request.headers["x-token"]) == ("/services/T0/B0/s3cret", "Bearer t0ken-t0ken")
    assert "answered with status 404: no such hook: [redacted]" in (result.error or "")
    assert "s3cret" not in str(result.to_dict()) and "t0ken" not in str(result.to_dict())


@pytest.mark.parametrize(
    ("address", "key"),
    [
        ("{place}/send?access_token=abcdef0123456789", "abcdef0123456789"),
        ("{place}/services/T00000001/B00000001/XyZ0123456789", "XyZ0123456789"),
        ("user:pass-word-1@{place}/x", "pass-word-1"),
        ("user:pass-word-1@{place}/x", base64.b64encode(b"user:pass-word-1").decode()),
    ],
)
async def test_a_key_of_the_url_is_hidden_in_answers(address, key):
    answer = json.dumps({"errcode": 300001, "errmsg": f"unknown key {key}"}).encode()
    async with serve_http(says(answer)) as server:
        url = "http://" + address.format(place=server.url.removeprefix("http://"))
        result = await notify(ChannelConfig(kind="webhook", url="${HOOK}", format="dingtalk"), environ={"HOOK": url})
    assert "did not accept the message: unknown key [redacted]" in (result.error or "")
    assert key not in str(result.to_dict()) and result.metadata["untrusted"] is True


async def test_a_key_does_not_show_where_an_error_is_cut():
    key = "abcdef0123456789"
    async with serve_http(says(b"x" * 290 + key.encode(), 400)) as server:
        result = await notify(ChannelConfig(kind="webhook", url=f"{server.url}/?key={key}"))
    assert key[:5] not in (result.error or "") and result.metadata["untrusted"] is True


@pytest.mark.parametrize(
    ("status", "may_pass", "in_doubt"),
    [(400, False, False), (401, False, False), (429, True, False), (503, True, False), (500, True, True)],
)
async def test_a_status_says_whether_it_was_sent(status, may_pass, in_doubt):
    async with serve_http(says(b"said", status, **{"Retry-After": "7"})) as server:
        result = await notify(ChannelConfig(kind="webhook", url=server.url))
    assert f"the channel 'ops' answered with status {status}: said" in (result.error or "")
    assert result.metadata.get("transient", False) is may_pass
    assert ("may have been sent" in (result.error or "")) is in_doubt is (result.metadata.get("outcome") == "unknown")
    assert len(server.requests) == 1


async def test_without_an_answer_the_outcome_is_unknown():
    async with serve_http(lambda _: None) as server:
        channel = ChannelConfig(kind="webhook", url=server.url)
        result = await time_out_after_start(lambda seconds: notify(channel, timeout=seconds), lambda: server.requests)
    assert (result.error_type, result.metadata["outcome"]) == ("timeout", "unknown")
    assert "may have been sent" in (result.error or "") and len(server.requests) == 1


async def test_a_shorter_timeout_of_the_caller_gives_the_same_error():
    async with serve_http(lambda _: None) as server, ToolEngine() as engine:
        channels = {"ops": ChannelConfig(kind="webhook", url=server.url)}
        engine.register(*notify_tools(NotifyConfig(channels=channels, timeout=600)))
        result = await time_out_after_start(
            lambda seconds: engine.execute("notify", {"message": "Hello"}, timeout=seconds), lambda: server.requests
        )
    assert re.search(r"took longer than (0\.4|4\.0|48\.0) seconds\. The message may have been sent", result.error or "")


async def test_after_an_incomplete_answer_the_outcome_is_unknown():
    async with serve_http(says(b"", 200, **{"Content-Length": "many"})) as server:
        result = await notify(ChannelConfig(kind="webhook", url=server.url))
    assert result.metadata["outcome"] == "unknown" and len(server.requests) == 1


async def test_nothing_is_sent_to_a_closed_port():
    async with serve_http(says(b"")) as server:
        pass
    result = await notify(ChannelConfig(kind="webhook", url=server.url))
    assert "the channel 'ops': no connection could be made" in (result.error or "")
    assert result.metadata["transient"] is True and "outcome" not in result.metadata


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_a_failure_and_not_followed(status):
    async with serve_http(says(b"")) as inner:
        leads = {"Location": f"http://localhost:{inner.port}/new?token=s3cret"}
        async with serve_http(lambda _: (status, leads, b"")) as server:
            result = await notify(ChannelConfig(kind="webhook", url=f"{server.url}/old"))
    assert f"redirects to http://localhost:{inner.port}/new. Set that as its url" in (result.error or "")
    assert inner.requests == [] and "s3cret" not in (result.error or "")
    assert result.metadata["outcome"] == "unknown" and "may have been sent" in (result.error or "")


@pytest.mark.parametrize(
    ("form", "message"), [("discord", "x" * 2_001), ("wecom", "很" * 700), ("feishu", "很" * 6_001)]
)
async def test_a_message_that_the_service_would_truncate_is_not_sent(form, message):
    async with serve_http(says(TAKEN[form])) as server:
        result = await notify(ChannelConfig(kind="webhook", url=server.url, format=form), message)
    assert "Nothing was sent: shorten the message." in (result.error or "") and server.requests == []
    assert result.metadata["advice"] == "change_arguments"


async def test_an_invalid_url_is_a_configuration_error():
    for url in ("http://[bad/", "http:///nowhere", "ftp://example.com/x", "example.com"):
        result = await notify(ChannelConfig(kind="webhook", url="${HOOK}"), environ={"HOOK": url})
        assert "in the configuration" in (result.error or "")
        assert "advice" not in result.metadata


async def test_an_invalid_header_is_a_configuration_error():
    async with serve_http(says(b"")) as server:
        channel = ChannelConfig(kind="webhook", url=server.url, headers={"X-Key": "${KEY}"})
        result = await notify(channel, environ={"KEY": "two\r\nX-Evil: lines"})
    assert "Change the channel in the configuration." in (result.error or "") and server.requests == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "webhok", "url": "https://example.com"}, "kind must be one of webhook, email, log, not 'webhok'."),
        ({"kind": "webhook"}, "needs url"),
        ({"kind": "webhook", "url": "ftp://example.com"}, "must begin with http"),
        ({"kind": "webhook", "url": "https://example.com", "format": "teams"}, "one of json, slack, discord, feishu"),
        ({"kind": "webhook", "url": "https://example.com", "secret": "x"}, "secret signs messages to feishu and ding"),
        ({"kind": "webhook", "url": "https://example.com", "to": ["a@b.c"]}, "to is for kind = 'email'"),
        ({"kind": "webhook", "url": "https://example.com", "headers": {"X Key": "1"}}, "headers: 'X Key' cannot be"),
    ],
)
def test_an_invalid_channel_is_refused(settings, message):
    with pytest.raises(SetupError) as refused:
        ChannelConfig(**settings)
    assert message in str(refused.value)
