"""Sending a notice by SMTP: one exchange with the mail server, never a second attempt.

Every failure before the text is handed over means that nothing was sent. From then on until the server confirms that it
has the text, the outcome is unknown. The mail server is set in the configuration, so it may have a private address.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ferrule.core.secrets import Secrets
from ferrule.core.variables import expand_variables
from ferrule.errors import CallError, ExecutionFailed, MissingExtra, SetupError, TimedOut, Transient
from ferrule.texts.shorten import cut
from ferrule_tools.notify.config import ChannelConfig, parse_address
from ferrule_tools.notify.message import Notice, mark_as_maybe_sent

if TYPE_CHECKING:
    from email.headerregistry import Address

    from aiosmtplib import SMTP

_PORTS: Final = {"starttls": 587, "tls": 465, "none": 25}
_QUIT_SHARE: Final = 0.1
"""The share of the time for sending that closing the session may take. By then the message has been sent."""
_LOCAL_HOSTNAME: Final = "[127.0.0.1]"
"""Sent instead of the machine's name, which is private and may take long to find out."""


class EmailChannel:
    """A channel of kind `email`."""

    def __init__(self, name: str, config: ChannelConfig, root: Path, environ: Mapping[str, str]) -> None:
        self._config, self._root, self._environ = config, root, environ
        self._what = f"the mail server of the channel {name!r}"

    async def send(self, notice: Notice, seconds: float) -> dict[str, Any]:
        sender = parse_address(self._expand(self._config.sender))
        recipients = [parse_address(self._expand(each)) for each in self._config.to]
        smtp = self._smtp()
        exchange = _SmtpExchange(smtp, self._what)
        with self._secrets().hide_in_errors():
            try:
                async with asyncio.timeout(seconds):
                    await exchange.connect()
                    refused = await exchange.send_addresses(sender, recipients)
                    await exchange.send_message(_compose_mail(notice, sender, recipients))
            except TimeoutError:
                raise exchange.failure(TimedOut, f"{self._what} took longer than {seconds:g} seconds.") from None
            else:
                with suppress(*_smtp_errors()):
                    await smtp.quit(timeout=min(1.0, _QUIT_SHARE * seconds))
            finally:
                smtp.close()
        return {"refused": refused, "untrusted": True} if refused else {}

    def _smtp(self) -> SMTP:
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
            tls_context=None if config.security == "none" else self._tls_context(),
        )

    def _tls_context(self) -> ssl.SSLContext:
        import httpx

        if not self._config.ca_file:
            return httpx.create_ssl_context()
        path = self._root / self._config.ca_file
        try:
            return ssl.create_default_context(cafile=str(path))
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


def _compose_mail(notice: Notice, sender: Address, recipients: Sequence[Address]) -> bytes:
    """The mail. No text of the notice can become a header or an address: the title is one line, the rest is body."""
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


class _SmtpExchange:
    """The steps of sending a mail, and what their failures mean."""

    def __init__(self, smtp: SMTP, what: str) -> None:
        self._smtp, self._what = smtp, what
        self._is_sending = False

    async def connect(self) -> None:
        try:
            await self._smtp.connect()
        except _smtp_errors() as error:
            raise self._convert_error(error) from error

    async def send_addresses(self, sender: Address, recipients: Sequence[Address]) -> dict[str, str]:
        """The recipients that the server refused, and why; one accepted recipient is enough to continue."""
        from aiosmtplib import SMTPRecipientRefused

        refused: dict[str, SMTPRecipientRefused] = {}
        try:
            await self._smtp.mail(sender.addr_spec)
            for recipient in recipients:
                try:
                    await self._smtp.rcpt(recipient.addr_spec)
                except SMTPRecipientRefused as error:
                    refused[recipient.addr_spec] = error
        except _smtp_errors() as error:
            raise self._convert_error(error) from error
        reasons = {address: f"{error.code} {_shorten(error.message)}" for address, error in refused.items()}
        if len(refused) == len(recipients):
            kind = Transient if all(400 <= error.code < 500 for error in refused.values()) else ExecutionFailed
            listed = "; ".join(f"{address}: {reason}" for address, reason in reasons.items())
            raise kind(f"{self._what} refused all recipients: {listed}. Nothing was sent.", untrusted=True)
        return reasons

    async def send_message(self, message: bytes) -> None:
        self._is_sending = True
        try:
            await self._smtp.data(message)
        except _smtp_errors() as error:
            raise self._convert_error(error) from error

    def failure(self, kind: type[CallError], reason: str, **details: Any) -> CallError:
        """A failure whose outcome is known unless the text was being sent."""
        error = kind(reason, **details) if self._is_sending else kind(f"{reason} Nothing was sent.", **details)
        return mark_as_maybe_sent(error) if self._is_sending else error

    def _convert_error(self, error: Exception) -> CallError:
        from aiosmtplib import SMTPAuthenticationError, SMTPResponseException

        tls_error = next((cause for cause in _iterate_causes(error) if isinstance(cause, ssl.SSLError)), None)
        if tls_error is not None and not self._is_sending:
            return ExecutionFailed(
                f"{self._what} cannot be trusted: {_shorten(str(tls_error))}. Nothing was sent. Check its host and its "
                "security in the configuration; ca_file names the certificates of a server of your own."
            )
        if isinstance(error, SMTPAuthenticationError):
            reason = f"{error.code} {_shorten(error.message)}"
            return ExecutionFailed(
                f"{self._what} rejected the username and password: {reason}. Nothing was sent.", untrusted=True
            )
        if isinstance(error, SMTPResponseException) and 400 <= error.code < 600:
            kind = Transient if error.code < 500 else ExecutionFailed
            reason = f"{error.code} {_shorten(error.message)}"
            return kind(f"{self._what} refused: {reason}. Nothing was sent.", untrusted=True)
        kind = Transient if isinstance(error, OSError) else ExecutionFailed
        return self.failure(kind, f"{self._what} failed: {_shorten(_error_message(error))}.", untrusted=True)


def _smtp_errors() -> tuple[type[Exception], ...]:
    from aiosmtplib import SMTPException

    return SMTPException, OSError, ValueError  # ValueError: aiosmtplib raises it for some malformed responses


def _iterate_causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _error_message(error: Exception) -> str:
    return str(getattr(error, "message", "") or error) or type(error).__name__


def _shorten(text: str) -> str:
    text = " ".join(text.encode("utf-8", "replace").decode().split()).rstrip(".")
    return cut(text, 300)
