"""`notify`: sends a message to people through a channel that the project has configured, in one exchange.

The host is set in the configuration, so it may have a private address.

- Webhooks: redirects are not followed. Each notice uses a new connection: on a reused one that is dead, a failed
  request leaves open whether it arrived.
- Mail: every failure before the text is handed over means that nothing was sent. From then on until the server confirms
  that it has the text, the outcome is unknown.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import ssl
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote

from ferrule.core.call import ToolExecutionContext
from ferrule.core.content import encode_json, replace_surrogates
from ferrule.core.names import did_you_mean
from ferrule.core.secrets import MIN_SECRET_LENGTH, Secrets
from ferrule.core.spec import Tool, ToolCategory
from ferrule.core.variables import expand_variables, find_strings
from ferrule.errors import (
    CallError,
    ExecutionFailed,
    MissingExtra,
    Retry,
    SetupError,
    TimedOut,
    Transient,
    TransportFault,
    iterate_causes,
)
from ferrule.http.bodies import body_excerpt
from ferrule.http.client import GuardedClient, HttpResponse, format_url
from ferrule.http.guard import AddressGuard
from ferrule.http.retry import retry_details
from ferrule.kinds.function.decorator import tool
from ferrule.kinds.function.tools import tool_of
from ferrule.texts.shorten import cut, single_line
from ferrule_tools._tool_setup import configure_tool, describe_missing_package, describe_needs, limit_seconds
from ferrule_tools.files.path_rules import Parts
from ferrule_tools.files.workspace import Workspace, convert_file_errors, display_path
from ferrule_tools.notify.config import (
    FORMATS,
    ChannelConfig,
    Level,
    Notice,
    NotifyConfig,
    WebhookFormat,
    build_body,
    mark_as_maybe_sent,
    parse_address,
    sign_request,
)

if TYPE_CHECKING:
    from email.headerregistry import Address

    from aiosmtplib import SMTP

MAX_RESPONSE: Final = 100_000
_TRANSIENT_STATUS: Final = frozenset({408, 425, 429, 503})
_UNKNOWN_OUTCOME: Final = frozenset({500, 502, 504})
"""A server or gateway may respond with these after the message was already delivered."""


class WebhookChannel:
    def __init__(self, name: str, config: ChannelConfig, guard: AddressGuard, environ: Mapping[str, str]) -> None:
        self._name, self._config, self._guard, self._environ = name, config, guard, environ
        self._what = f"the channel {name!r}"

    async def send(self, notice: Notice, seconds: float) -> dict[str, Any]:
        service = FORMATS[self._config.format]
        if service.max_length is not None and (length := service.length(notice)) > service.max_length:
            unit = "bytes" if service.counts_bytes else "characters"
            raise Retry(
                f"Title and message have {length:,} {unit}; the channel {self._name!r} takes {service.max_length:,}. "
                "Nothing was sent: shorten the message."
            )
        url = expand_variables(self._config.url, self._environ)
        address, body = url, build_body(self._config.format, notice)
        if self._config.secret:
            secret = expand_variables(self._config.secret, self._environ)
            address, body = sign_request(self._config.format, url, body, secret, time.time())
        secrets = Secrets.from_template([self._config.url, self._config.secret, self._config.headers], self._environ)
        secrets.add(part for part in _secret_parts(url) if len(part) >= MIN_SECRET_LENGTH)
        with secrets.hide_in_errors():
            response = await self._post(address, encode_json(body), seconds)
            # Hidden before the response is shortened: the cut might go through the middle of a secret.
            self._require_accepted(service, replace(response, content=secrets.hide_in_bytes(response.content)))
        return {}

    async def _post(self, address: str, content: bytes, seconds: float) -> HttpResponse:
        headers = {name: expand_variables(value, self._environ) for name, value in self._config.headers.items()}
        try:
            guard = self._guard.allowing_host_of(address)
        except (ValueError, SetupError):
            message = f"The url of {self._what} is not valid. Change it in the configuration."
            raise ExecutionFailed(message) from None
        client = GuardedClient(guard, max_response=MAX_RESPONSE)
        try:
            return await client.send(
                "POST",
                address,
                what=self._what,
                headers={"Content-Type": "application/json; charset=utf-8", **headers},
                content=content,
                timeout=seconds,
                only_once=True,
                on_redirect=self._refuse_redirect,
            )
        except CallError as error:
            raise _to_notify_error(error) from error
        finally:
            await client.aclose()

    async def _refuse_redirect(self, url: str) -> None:
        # Most redirects turn a POST into a GET, whose response says nothing about the message.
        raise ExecutionFailed(
            f"{self._what} redirects to {format_url(url)}. Set that as its url in the configuration.", untrusted=True
        )

    def _require_accepted(self, service: WebhookFormat, response: HttpResponse) -> None:
        """Raise an error if the service did not accept the message."""
        if response.status_code >= 400:
            raise self._status_error(response)
        if not 200 <= response.status_code < 300:
            raise mark_as_maybe_sent(ExecutionFailed(f"{self._what} answered with status {response.status_code}."))
        if not service.code_key:
            return
        try:
            answer = json.loads(response.content)
            code, reason = answer[service.code_key], str(answer.get(service.reason_key, ""))[:300]
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            body = body_excerpt(response, 200) or "nothing"
            message = f"{self._what} returned a response that {self._config.format} does not use: {body}."
            raise mark_as_maybe_sent(ExecutionFailed(message, untrusted=True)) from None
        if code != 0:
            kind = Transient if isinstance(code, int) and code in service.transient_codes else ExecutionFailed
            reason = f"{reason} ({service.code_key} {repr(code)[:100]})"
            raise kind(f"{self._what} did not accept the message: {reason}. Nothing was sent.", untrusted=True)

    def _status_error(self, response: HttpResponse) -> CallError:
        body = body_excerpt(response, 300).rstrip(".")
        message = f"{self._what} answered with status {response.status_code}" + (f": {body}." if body else ".")
        details: dict[str, Any] = {"untrusted": True} if body else {}
        if response.status_code in _UNKNOWN_OUTCOME:
            return mark_as_maybe_sent(Transient(message, **details))
        if response.status_code in _TRANSIENT_STATUS:
            return Transient(message, **details, **retry_details(response.headers))
        return ExecutionFailed(f"{message} Check the channel in the configuration. Nothing was sent.", **details)


def _secret_parts(url: str) -> Iterator[str]:
    """Yield the secret parts of a webhook's URL: who knows the URL can post to it, so all but the host is secret."""
    host, _, rest = url.partition("://")[2].partition("/")
    path, _, query = rest.partition("?")
    yield from (url, path, query)
    yield from (part for part in path.split("/") if any(map(str.isdigit, part)))  # others are plain words of the API
    yield from (value for _, value in parse_qsl(query))
    if user := unquote(host.rpartition("@")[0]):
        yield from (user, user.partition(":")[2], base64.b64encode(user.encode()).decode())


def _to_notify_error(error: CallError) -> CallError:
    """Convert a transport failure into a failure of this tool."""
    if error.details.get("outcome") == "unknown" or isinstance(error, TimedOut):
        error = mark_as_maybe_sent(error)
    if isinstance(error, Retry) or error.details.get("unknown_host"):
        # The configuration is wrong, not an argument.
        details = {name: value for name, value in error.details.items() if name != "advice"}
        return ExecutionFailed(f"{error} Change the channel in the configuration.", **details)
    if isinstance(error, TransportFault):  # one channel of several: the tool itself still works
        return Transient(str(error), **error.details)
    return error


# Mail

_PORTS: Final = {"starttls": 587, "tls": 465, "none": 25}
_QUIT_SHARE: Final = 0.1
"""The share of the time for sending that closing the session may take. By then the message has been sent."""
_LOCAL_HOSTNAME: Final = "[127.0.0.1]"
"""Sent instead of the machine's name, which is private and may take long to find out."""


class EmailChannel:
    """A channel of kind `email`, for one message."""

    def __init__(self, name: str, config: ChannelConfig, root: Path, environ: Mapping[str, str]) -> None:
        self._config, self._root, self._environ = config, root, environ
        self._what = f"the mail server of the channel {name!r}"
        self._is_sending = False
        """Whether the text is being handed over: from then on the outcome of a failure is unknown."""

    async def send(self, notice: Notice, seconds: float) -> dict[str, Any]:
        sender = parse_address(self._expand(self._config.sender))
        recipients = [parse_address(self._expand(each)) for each in self._config.to]
        smtp = self._create_smtp()
        from aiosmtplib import SMTPException

        # aiosmtplib raises ValueError for some malformed responses.
        smtp_errors = (SMTPException, OSError, ValueError)
        with self._secrets().hide_in_errors():
            try:
                async with asyncio.timeout(seconds):
                    await smtp.connect()
                    refused = await self._send_addresses(smtp, sender, recipients)
                    self._is_sending = True
                    await smtp.data(_compose_mail(notice, sender, recipients))
            except TimeoutError:
                raise self._failure(TimedOut, f"{self._what} took longer than {seconds:g} seconds.") from None
            except smtp_errors as error:
                raise self._convert_error(error) from error
            else:
                with suppress(*smtp_errors):
                    await smtp.quit(timeout=min(1.0, _QUIT_SHARE * seconds))
            finally:
                smtp.close()
        return {"refused": refused, "untrusted": True} if refused else {}

    def _create_smtp(self) -> SMTP:
        try:
            from aiosmtplib import SMTP
        except ImportError:
            raise MissingExtra("aiosmtplib", "notify") from None
        config = self._config
        return SMTP(
            hostname=self._expand(config.host),
            port=config.port or _PORTS[config.security],
            username=self._expand(config.username) or None,
            password=self._expand(config.password) or None,
            local_hostname=_LOCAL_HOSTNAME,
            timeout=None,  # `send` has one timeout for everything
            use_tls=config.security == "tls",
            start_tls=config.security == "starttls",
            tls_context=None if config.security == "none" else self._create_tls_context(),
        )

    def _create_tls_context(self) -> ssl.SSLContext:
        import httpx

        if not self._config.ca_file:
            return httpx.create_ssl_context()
        try:
            return ssl.create_default_context(cafile=str(self._root / self._config.ca_file))
        except OSError as error:
            raise SetupError(f"ca_file {self._config.ca_file!r} cannot be used: {error}") from error

    def _secrets(self) -> Secrets:
        secrets = Secrets.from_template([self._config.username, self._config.password], self._environ)
        username, password = self._expand(self._config.username), self._expand(self._config.password)
        if password:
            # Servers repeat lines that they do not understand: these are what login lines contain.
            logins = (password, f"\0{username}\0{password}")
            secrets.add(base64.b64encode(login.encode()).decode() for login in logins)
        return secrets

    def _expand(self, text: str) -> str:
        return expand_variables(text, self._environ)

    async def _send_addresses(self, smtp: SMTP, sender: Address, recipients: Sequence[Address]) -> dict[str, str]:
        """Send the envelope. Return the recipients that the server refused, and why.

        One accepted recipient is enough to continue.
        """
        from aiosmtplib import SMTPRecipientRefused

        refused: dict[str, SMTPRecipientRefused] = {}
        await smtp.mail(sender.addr_spec)
        for recipient in recipients:
            try:
                await smtp.rcpt(recipient.addr_spec)
            except SMTPRecipientRefused as error:
                refused[recipient.addr_spec] = error
        reasons = {address: f"{error.code} {_shorten(error.message)}" for address, error in refused.items()}
        if len(refused) == len(recipients):
            kind = Transient if all(400 <= error.code < 500 for error in refused.values()) else ExecutionFailed
            listed = "; ".join(f"{address}: {reason}" for address, reason in reasons.items())
            raise kind(f"{self._what} refused all recipients: {listed}. Nothing was sent.", untrusted=True)
        return reasons

    def _failure(self, kind: type[CallError], reason: str, **details: Any) -> CallError:
        """Return an error whose outcome is known unless the text was being sent."""
        if self._is_sending:
            return mark_as_maybe_sent(kind(reason, **details))
        return kind(f"{reason} Nothing was sent.", **details)

    def _convert_error(self, error: Exception) -> CallError:
        from aiosmtplib import SMTPAuthenticationError, SMTPResponseException

        tls_error = next((cause for cause in iterate_causes(error) if isinstance(cause, ssl.SSLError)), None)
        if tls_error is not None and not self._is_sending:
            return ExecutionFailed(
                f"{self._what} cannot be trusted: {_shorten(str(tls_error))}. Nothing was sent. Check its host and its "
                "security in the configuration; ca_file names the certificates of a server of your own."
            )
        if isinstance(error, SMTPResponseException) and 400 <= error.code < 600:
            kind = Transient if error.code < 500 else ExecutionFailed
            what = "refused"
            if isinstance(error, SMTPAuthenticationError):
                kind, what = ExecutionFailed, "rejected the username and password"
            reason = f"{error.code} {_shorten(error.message)}"
            return kind(f"{self._what} {what}: {reason}. Nothing was sent.", untrusted=True)
        kind = Transient if isinstance(error, OSError) else ExecutionFailed
        message = str(getattr(error, "message", "") or error) or type(error).__name__
        return self._failure(kind, f"{self._what} failed: {_shorten(message)}.", untrusted=True)


def _compose_mail(notice: Notice, sender: Address, recipients: Sequence[Address]) -> bytes:
    """Compose the mail.

    No text of the notice can become a header or an address: the title is one line, the rest is body.
    """
    import email.policy
    from email.message import EmailMessage
    from email.utils import format_datetime, make_msgid

    # Seven bits: every server accepts that, whatever extensions it has.
    message = EmailMessage(policy=email.policy.SMTP.clone(cte_type="7bit"))
    message["Subject"] = notice.subject
    message["From"] = sender
    message["To"] = tuple(recipients)
    message["Date"] = format_datetime(notice.created_at)
    message["Message-ID"] = make_msgid(domain=sender.domain)
    message["Auto-Submitted"] = "auto-generated"  # prevents automatic out-of-office replies
    if notice.level == "error":
        message["Importance"] = "high"
    message.set_content(f"{notice.message}\n")
    return message.as_bytes()


def _shorten(text: str) -> str:
    return cut(single_line(replace_surrogates(text)).rstrip("."), 300)


logger = logging.getLogger("ferrule.notify")

NO_CHANNEL: Final = (
    'a channel to send messages by: write [tools.notify.channels.<name>] in ferrule.toml, with kind = "webhook", '
    '"email" or "log"'
)
_OUTPUT: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "sent": {"type": "boolean"},
        "channel": {"type": "string"},
        "path": {"type": "string", "description": "The file it was written to."},
        "refused": {"type": "object", "description": "Recipients that the mail server refused, and why."},
        "untrusted": {"type": "boolean", "description": "It contains text from the mail server."},
    },
}
_EXTRA_TIME: Final = 5.0
"""Seconds beyond those for sending, to report the outcome."""
_SENDING_SHARE: Final = 0.8
"""The share of the caller's timeout for sending; the rest is for reporting the outcome."""
_LOG_LEVELS: Final = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def notify_tools(
    config: NotifyConfig | None = None,
    *,
    root: Path | None = None,
    guard: AddressGuard | None = None,
    environ: Mapping[str, str] = os.environ,
) -> list[Tool]:
    """Return `notify`, ready if at least one channel is ready. Paths of logs and certificates start at `root`."""
    config = config or NotifyConfig()
    notifier = Notifier(config, root=root or Path(), guard=guard or AddressGuard(), environ=environ)
    missing = {name: _describe_missing_settings(channel, environ) for name, channel in config.channels.items()}
    parameters = {}
    if config.channels:
        listed = ", ".join(f"{name} ({channel.kind})" for name, channel in config.channels.items())
        optional = "; may be left out" if len(config.channels) == 1 else ""
        parameters["channel"] = {"description": f"the channel to send it by: {listed}{optional}"}
    return [
        configure_tool(
            tool_of(notifier.notify),
            output=_OUTPUT,
            timeout=config.timeout + _EXTRA_TIME,
            parameters=parameters,
            needs=describe_needs(missing, "channel", NO_CHANNEL),
        )
    ]


def _describe_missing_settings(channel: ChannelConfig, environ: Mapping[str, str]) -> str:
    """Return what is missing before a channel can be used; an empty text if nothing."""
    if channel.kind == "email" and (missing := describe_missing_package("aiosmtplib", "notify")):
        return missing
    try:
        for text in find_strings(asdict(channel)):
            expand_variables(text, environ)
    except SetupError as error:
        return str(error)
    return ""


class Notifier:
    def __init__(self, config: NotifyConfig, *, root: Path, guard: AddressGuard, environ: Mapping[str, str]) -> None:
        self._config, self._root, self._guard, self._environ = config, root, guard, environ

    # Neither read-only nor idempotent, so it is never retried automatically: people would get the message twice.
    @tool(
        category=ToolCategory.NOTIFICATION,
        tags=["notify", "send", "message", "alert", "email", "slack", "webhook", "通知", "消息", "提醒", "邮件"],
        examples=[
            {"message": "The nightly backup has finished."},
            {"message": "磁盘空间不足 5%", "title": "服务器 web-1", "level": "warning"},
        ],
    )
    async def notify(
        self,
        message: str,
        title: str | None = None,
        channel: str | None = None,
        level: Level = "info",
        context: ToolExecutionContext | None = None,
    ) -> dict[str, Any]:
        """Notify people by chat, by mail or in a log, as the project has configured it. 向相关人员发送通知。

        The channel determines the recipients. Each call sends the message once.

        Args:
            message: what people should know, in plain text
            title: what it is about, in a few words
            channel: the channel to send it by
            level: how urgent it is
        """
        names = list(self._config.channels)
        if channel is None and len(names) != 1:
            raise Retry(f"Say which channel to use: {', '.join(names)}.")
        name = channel or names[0]
        if name not in names:
            raise Retry(
                f"There is no channel {name!r}.{did_you_mean(name, names)} The channels are: {', '.join(names)}."
            )
        notice = Notice.of(message, title, level)
        seconds = limit_seconds(context, self._config.timeout, _SENDING_SHARE)
        try:
            details = await self._build_channel(name).send(notice, seconds)
        except SetupError as error:
            raise ExecutionFailed(f"The channel {name!r} is not set up: {error}. Nothing was sent.") from error
        return {"sent": True, "channel": name, **details}

    def _build_channel(self, name: str) -> WebhookChannel | EmailChannel | LogChannel:
        config = self._config.channels[name]
        if config.kind == "webhook":
            return WebhookChannel(name, config, self._guard, self._environ)
        if config.kind == "email":
            return EmailChannel(name, config, self._root, self._environ)
        return LogChannel(name, config, self._root)


class LogChannel:
    """Writes each notice as one line of JSON, to the end of a file or to the logger `ferrule.notify`."""

    def __init__(self, name: str, config: ChannelConfig, root: Path) -> None:
        self._name, self._path, self._root = name, config.path, root

    async def send(self, notice: Notice, seconds: float) -> dict[str, Any]:
        line = encode_json(
            {
                "time": notice.created_at.isoformat(timespec="milliseconds"),
                "level": notice.level,
                "channel": self._name,
                "title": notice.title,
                "message": notice.message,
            }
        )
        if not self._path:
            level = _LOG_LEVELS[notice.level]
            # Without any logging set up, Python writes warnings and errors to the standard error.
            uses_last_resort = logging.lastResort is not None and level >= logging.lastResort.level
            if not (logger.isEnabledFor(level) and (logger.hasHandlers() or uses_last_resort)):
                raise ExecutionFailed(
                    f"The logger 'ferrule.notify' has no handler for level {logging.getLevelName(level)}: set up "
                    "logging, or give the channel a path in the configuration. Nothing was written."
                )
            logger.log(level, "%s", line.decode())
            return {}
        workspace = Workspace.at(self._root, protected=(), secret=())  # the user has chosen the path
        parts = workspace.file_parts(self._path)
        _append_line(workspace, parts, line + b"\n")
        return {"path": display_path(parts)}


def _append_line(workspace: Workspace, parts: Parts, line: bytes) -> None:
    """Append a line with a single write, so that lines of concurrent writers stay whole."""
    with workspace.open_folder(parts[:-1], create=True) as folder, convert_file_errors(parts):
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.open(parts[-1], flags, 0o600, dir_fd=folder)
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
                raise ExecutionFailed(
                    f"{display_path(parts)!r} is not a plain file: nothing was written. Set another path."
                )
            # If a full disk once cut a line short, this line still starts on a new line.
            ends_with_newline = status.st_size == 0 or os.pread(file, 1, status.st_size - 1) == b"\n"
            data = line if ends_with_newline else b"\n" + line
            if os.write(file, data) != len(data):
                raise ExecutionFailed(
                    f"Only a part of the line was written to {display_path(parts)!r}: is the disk full?"
                )
        finally:
            os.close(file)
