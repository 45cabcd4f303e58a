"""`notify` by mail, against real mail servers."""

import base64
from pathlib import Path
from typing import Any

import pytest

from ferrule import ToolEngine
from ferrule.core.call import ToolExecutionResult
from ferrule.errors import SetupError
from ferrule_tools.notify import ChannelConfig, NotifyConfig, notify_tools
from tests.ferrule_tools.notify.mail_server import MailServer, certificate, mail_channel, mail_server, scripted_server
from tests.support.waiting import time_out_after_start

pytestmark = pytest.mark.integration

GREETED = ("220 mail.example", "250 mail.example")
"""Up to EHLO."""


async def notify(
    channel: ChannelConfig, message: str = "The disk is full.", *, root: Path | None = None, **more: Any
) -> ToolExecutionResult:
    timeout, environ = more.pop("timeout", 120.0), more.pop("environ", {})
    config = NotifyConfig(channels={"ops": channel}, timeout=timeout)
    async with ToolEngine() as engine:
        engine.register(*notify_tools(config, root=root, environ=environ))
        return await engine.execute("notify", {"message": message, **more})


async def test_a_mail_arrives_with_its_title_and_its_text():
    server = MailServer()
    async with mail_server(server):
        result = await notify(mail_channel(server, to=["a@example.com", "乙 <b@example.com>"]), title="web-1")
    assert result.output == {"sent": True, "channel": "ops"}
    [letter], [envelope] = server.letters, server.envelopes
    assert (letter["Subject"], letter.get_content()) == ("web-1", "The disk is full.\r\n")
    assert (letter["From"], letter["To"]) == ("Ferrule <ferrule@example.com>", "a@example.com, 乙 <b@example.com>")
    assert (envelope.mail_from, envelope.rcpt_tos) == ("ferrule@example.com", ["a@example.com", "b@example.com"])
    assert letter["Auto-Submitted"] == "auto-generated" and letter["Message-ID"].endswith("@example.com>")


async def test_any_script_arrives_as_it_was_written():
    server, text = MailServer(), "磁盘空间不足 🙂\n\n.\n.. naïve" + "很" * 2000
    async with mail_server(server):
        await notify(mail_channel(server), text, title="服务器 " + "警" * 150, level="error")
    [letter] = server.letters
    assert letter["Subject"] == "[ERROR] 服务器 " + "警" * 150
    assert letter.get_content() == text.replace("\n", "\r\n") + "\r\n"
    assert server.envelopes[0].content.isascii()


@pytest.mark.parametrize("end", ["\r\n", "\n", "\r", "\x0b", "\x85", "\u2028", "\r\n ", "%0d%0a", "\0\r\n"])
async def test_a_title_cannot_become_a_header(end):
    server = MailServer()
    async with mail_server(server):
        title = f"Hello{end}Bcc: victim@example.com{end}{end}<b>body</b>"
        result = await notify(mail_channel(server), f"text{end}.{end}RCPT TO:<victim@example.com>", title=title)
    assert result.is_success, result.error
    [letter], [envelope] = server.letters, server.envelopes
    assert "Bcc" not in letter and envelope.rcpt_tos == ["ops@example.com"]
    assert letter["Subject"].startswith("Hello") and "Bcc: victim@example.com" in letter["Subject"]
    assert "RCPT TO:<victim@example.com>" in letter.get_content()


async def test_a_message_without_a_title_has_its_first_sentence_for_a_subject():
    server = MailServer()
    async with mail_server(server):
        await notify(mail_channel(server), "备份完成。没有错误。", level="warning")
    assert server.letters[0]["Subject"] == "[WARNING] 备份完成。"


async def test_starttls_and_a_password_of_the_environment(tmp_path):
    tls, ca_file = certificate(tmp_path)
    server = MailServer()
    async with mail_server(server, tls, require_starttls=True, auth_required=True):
        channel = mail_channel(
            server, security="starttls", username="${MAIL_USER}", password="${MAIL_PASSWORD}", ca_file=ca_file
        )
        environ = {"MAIL_USER": "bob", "MAIL_PASSWORD": "s3cret-pass"}
        result = await notify(channel, root=tmp_path, environ=environ)
    assert result.is_success, result.error
    assert len(server.letters) == 1


async def test_a_wrong_password_is_reported_without_showing_it(tmp_path):
    tls, ca_file = certificate(tmp_path)
    server = MailServer()
    async with mail_server(server, tls):
        channel = mail_channel(
            server, security="starttls", username="bob", password="${MAIL_PASSWORD}", ca_file=ca_file
        )
        result = await notify(channel, root=tmp_path, environ={"MAIL_PASSWORD": "wr0ng-pass"})
    assert "rejected the username and password: 535" in (result.error or "")
    assert "wr0ng-pass" not in str(result.to_dict()) and server.letters == []


async def test_a_password_that_the_server_repeats_is_hidden(tmp_path):
    tls, ca_file = certificate(tmp_path)
    line = base64.b64encode(b"\0bob\0wr0ng-pass").decode()
    lines = ["220 hi", "250-mail.example", "250 AUTH PLAIN", f"535 what is {line} or wr0ng-pass?", None]
    async with scripted_server(lines, tls) as server:
        channel = mail_channel(server, security="tls", username="bob", password="${PASSWORD}", ca_file=ca_file)
        result = await notify(channel, root=tmp_path, environ={"PASSWORD": "wr0ng-pass"})
    assert "535 what is [redacted] or [redacted]?" in (result.error or "")


async def test_tls_from_the_first_byte(tmp_path):
    tls, ca_file = certificate(tmp_path)
    lines = [*GREETED, "250 OK", "250 OK", "354 go on", "250 taken", "221 bye"]
    async with scripted_server(lines, tls) as server:
        result = await notify(mail_channel(server, security="tls", ca_file=ca_file), root=tmp_path)
    assert result.is_success, result.error


@pytest.mark.parametrize("security", ["starttls", "tls"])
async def test_a_self_signed_certificate_is_not_trusted(tmp_path, security):
    tls, _ = certificate(tmp_path)
    lines = ["220 hi", "250-mail.example", "250 STARTTLS", "220 go on"]
    server = MailServer()
    if security == "starttls":
        async with mail_server(server, tls):
            result = await notify(mail_channel(server, security=security))
    else:
        async with scripted_server(lines, tls) as other:
            result = await notify(mail_channel(other, security=security))
    assert "cannot be trusted: " in (result.error or "") and "self-signed" in (result.error or "")
    assert "Nothing was sent." in (result.error or "") and server.letters == []
    assert "transient" not in result.metadata


async def test_a_certificate_of_another_host_is_not_trusted(tmp_path):
    tls, ca_file = certificate(tmp_path, "mail.example")
    server = MailServer()
    async with mail_server(server, tls):
        result = await notify(mail_channel(server, security="starttls", ca_file=ca_file), root=tmp_path)
    assert "mismatch" in (result.error or "") and server.letters == []


async def test_a_server_without_starttls_gets_neither_password_nor_mail():
    server = MailServer()
    async with mail_server(server):
        channel = mail_channel(server, security="starttls", username="bob", password="s3cret-pass")
        result = await notify(channel)
    assert "STARTTLS extension not supported" in (result.error or "") and server.letters == []


async def test_a_refused_recipient_is_named_and_the_others_get_the_mail():
    server = MailServer(answers={"gone@example.com": "550 no such user"})
    async with mail_server(server):
        result = await notify(mail_channel(server, to=["gone@example.com", "ops@example.com"]))
    assert result.output["refused"] == {"gone@example.com": "550 no such user"} and result.output["untrusted"] is True
    assert server.envelopes[0].rcpt_tos == ["ops@example.com"]


@pytest.mark.parametrize(("answer", "may_pass"), [("550 no such user", False), ("450 mailbox is busy", True)])
async def test_when_every_recipient_is_refused_nothing_was_sent(answer, may_pass):
    server = MailServer(answers={"ops@example.com": answer})
    async with mail_server(server):
        result = await notify(mail_channel(server))
    assert f"refused all recipients: ops@example.com: {answer}. Nothing was sent." in (result.error or "")
    assert result.metadata.get("transient", False) is may_pass and "outcome" not in result.metadata


@pytest.mark.parametrize("command", ["MAIL", "DATA"])
@pytest.mark.parametrize(("answer", "may_pass"), [("554 spam", False), ("451 try again", True)])
async def test_a_refused_mail_was_not_sent(command, answer, may_pass):
    server = MailServer(answers={command: answer})
    async with mail_server(server):
        result = await notify(mail_channel(server))
    assert f"refused: {answer}. Nothing was sent." in (result.error or "") and result.metadata["untrusted"] is True
    assert result.metadata.get("transient", False) is may_pass and "outcome" not in result.metadata


async def test_a_server_that_hangs_up_after_the_text_may_have_sent_it():
    async with scripted_server([*GREETED, "250 OK", "250 OK", "354 go on"]) as server:
        result = await notify(mail_channel(server))
    assert "The message may have been sent: find out before you send it again." in (result.error or "")
    assert result.metadata["outcome"] == "unknown"


@pytest.mark.parametrize("lines", [[], ["220 hi"], [*GREETED], [*GREETED, "250 OK"], ["bogus"], ["554 go away"]])
async def test_a_server_that_hangs_up_before_the_text_has_sent_nothing(lines):
    async with scripted_server(lines) as server:
        result = await notify(mail_channel(server))
    assert not result.is_success and "Nothing was sent." in (result.error or "")
    assert "outcome" not in result.metadata


async def test_after_an_invalid_answer_to_the_text_the_outcome_is_unknown():
    async with scripted_server([*GREETED, "250 OK", "250 OK", "354 go on", "yes of course", None]) as server:
        result = await notify(mail_channel(server))
    assert result.metadata["outcome"] == "unknown" and "may have been sent" in (result.error or "")


@pytest.mark.parametrize("before", [[], ["220 hi"], [*GREETED, "250 OK"]])
async def test_a_silent_server_is_given_up_after_the_timeout(before):
    async with scripted_server([*before, None]) as server:
        result = await notify(mail_channel(server), timeout=0.2)
    assert result.error_type == "timeout"
    assert (result.error or "").endswith("took longer than 0.2 seconds. Nothing was sent.")


async def test_after_a_timeout_while_sending_the_text_the_outcome_is_unknown():
    server = MailServer(is_silent=True)
    async with mail_server(server):
        result = await time_out_after_start(
            lambda seconds: notify(mail_channel(server), timeout=seconds), lambda: server.unanswered
        )
    assert (result.error_type, result.metadata["outcome"]) == ("timeout", "unknown")


async def test_a_session_that_does_not_close_is_a_success():
    async with scripted_server([*GREETED, "250 OK", "250 OK", "354 go on", "250 taken", None]) as server:
        result = await notify(mail_channel(server))
    assert result.is_success, result.error


async def test_an_endless_answer_is_a_failure():
    async with scripted_server(["220-" + "x" * 2_000] * 100) as server:
        result = await notify(mail_channel(server))
    assert not result.is_success and len(result.error or "") < 500


async def test_a_closed_port_is_reported():
    server = MailServer()
    async with mail_server(server):
        pass
    result = await notify(mail_channel(server))
    assert "failed: Error connecting to 127.0.0.1" in (result.error or "") and result.metadata["transient"] is True


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"to": []}, "needs to"),
        ({"to": ["nobody"]}, "'nobody' is not a mail address"),
        ({"to": ["a@example.com\r\nBcc: b@example.com"]}, "is not a mail address"),
        ({"to": ["a@example.com, b@example.com"]}, "is not a mail address"),
        ({"sender": "用户@example.com"}, "is not a mail address"),
        ({"security": "ssl"}, "one of starttls, tls, none, not 'ssl'"),
        ({"port": 70000}, "from 1 to 65535"),
        ({"username": "bob"}, "come together"),
        ({"username": "bob", "password": "x", "host": "mail.example"}, "the password could be read"),
        ({"url": "https://example.com"}, "url is for kind = 'webhook', not for 'email'"),
    ],
)
def test_an_invalid_channel_is_refused(settings, message):
    with pytest.raises(SetupError) as refused:
        mail_channel(MailServer(port=25), **settings)
    assert message in str(refused.value)


async def test_an_address_of_the_environment_is_checked_when_it_is_used():
    server = MailServer()
    async with mail_server(server):
        channel = mail_channel(server, to=["${OPS}"])
        result = await notify(channel, environ={"OPS": "a@example.com\r\nDATA"})
    assert "is not set up" in (result.error or "") and server.envelopes == []
