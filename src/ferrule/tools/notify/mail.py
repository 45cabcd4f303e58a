"""Sending a notice by SMTP: one conversation with the mail server, never a second one.

Up to the moment the text is handed over every failure means that nothing was sent; from then on until the server says
that it has the text nobody knows. The mail server stands in the configuration, so it may be a private one.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ferrule.errors import CallError, ExecutionFailed, MissingExtra, SetupError, TimedOut, Transient
from ferrule.executors.secrets import Secrets
from ferrule.executors.variables import expand_variables
from ferrule.tools.notify.addresses import check_address
from ferrule.tools.notify.config import ChannelConfig
from ferrule.tools.notify.doubt import in_doubt
from ferrule.tools.notify.letter import letter
from ferrule.tools.notify.notice import Notice

if TYPE_CHECKING:
    from email.headerregistry import Address

    from aiosmtplib import SMTP

PORTS: Final = {"starttls": 587, "tls": 465, "none": 25}
FAREWELL: Final = 0.1
"""Of the time for sending, what a server has to say goodbye: the message is sent, and nothing depends on it."""
# We say who we are by this and not by the machine's name: to find that out may take long, and it is nobody's business.
_HERE: Final = "[127.0.0.1]"


class Mail:
    """A channel of kind `email`."""

    def __init__(self, name: str, config: ChannelConfig, root: Path, environ: Mapping[str, str]) -> None:
        self._config, self._root, self._environ = config, root, environ
        self._what = f"the mail server of the channel {name!r}"

    async def send(self, notice: Notice, seconds: float) -> dict[str, Any]:
        sender = check_address(self._said(self._config.sender))
        recipients = [check_address(self._said(each)) for each in self._config.to]
        smtp = self._smtp()
        conversation = _Conversation(smtp, self._what)
        with self._secrets().hidden_in_errors():
            try:
                async with asyncio.timeout(seconds):
                    await conversation.begin()
                    refused = await conversation.address(sender, recipients)
                    await conversation.hand_over(letter(notice, sender, recipients))
            except TimeoutError:
                raise conversation.ended(TimedOut, f"{self._what} took longer than {seconds:g} seconds.") from None
            else:
                with suppress(*_smtp_errors()):
                    await smtp.quit(timeout=min(1.0, FAREWELL * seconds))
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
            hostname=self._said(config.host),
            port=config.port or PORTS[config.security],
            username=self._said(config.username) or None,
            password=self._said(config.password) or None,
            local_hostname=_HERE,
            timeout=None,  # there is one clock for all of it
            use_tls=config.security == "tls",
            start_tls=config.security == "starttls",
            tls_context=None if config.security == "none" else self._certificates(),
        )

    def _certificates(self) -> ssl.SSLContext:
        import httpx

        if not self._config.ca_file:
            return httpx.create_ssl_context()
        path = self._root / self._config.ca_file
        try:
            return ssl.create_default_context(cafile=str(path))
        except OSError as error:
            raise SetupError(f"ca_file {self._config.ca_file!r} cannot be used: {error}") from error

    def _secrets(self) -> Secrets:
        secrets = Secrets([self._config.username, self._config.password], self._environ)
        username, password = self._said(self._config.username), self._said(self._config.password)
        if password:
            # Servers repeat a line they do not understand, and this is what stands in it.
            lines = (password, f"\0{username}\0{password}")
            secrets.add(base64.b64encode(line.encode()).decode() for line in lines)
        return secrets

    def _said(self, text: str) -> str:
        return expand_variables(text, self._environ)


class _Conversation:
    """What is said to a mail server, step by step, and what its failures mean."""

    def __init__(self, smtp: SMTP, what: str) -> None:
        self._smtp, self._what = smtp, what
        self._handing_over = False

    async def begin(self) -> None:
        try:
            await self._smtp.connect()
        except _smtp_errors() as error:
            raise self._failure(error) from error

    async def address(self, sender: Address, recipients: Sequence[Address]) -> dict[str, str]:
        """Those of the recipients that the server refused, and why; one it takes is enough to go on."""
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
            raise self._failure(error) from error
        said = {address: f"{error.code} {_short(error.message)}" for address, error in refused.items()}
        if len(refused) == len(recipients):
            kind = Transient if all(400 <= error.code < 500 for error in refused.values()) else ExecutionFailed
            told = "; ".join(f"{address}: {why}" for address, why in said.items())
            raise kind(f"{self._what} takes no mail for {told}. Nothing was sent.", untrusted=True)
        return said

    async def hand_over(self, message: bytes) -> None:
        self._handing_over = True
        try:
            await self._smtp.data(message)
        except _smtp_errors() as error:
            raise self._failure(error) from error

    def ended(self, kind: type[CallError], why: str, **facts: Any) -> CallError:
        """A failure that leaves no doubt unless the text was being handed over."""
        return in_doubt(kind(why, **facts)) if self._handing_over else kind(f"{why} Nothing was sent.", **facts)

    def _failure(self, error: Exception) -> CallError:
        from aiosmtplib import SMTPAuthenticationError, SMTPResponseException

        distrust = next((cause for cause in _causes(error) if isinstance(cause, ssl.SSLError)), None)
        if distrust is not None and not self._handing_over:
            return ExecutionFailed(
                f"{self._what} cannot be trusted: {_short(str(distrust))}. Nothing was sent. Check its host and its "
                "security in the configuration; ca_file names the certificates of a server of your own."
            )
        if isinstance(error, SMTPAuthenticationError):
            said = f"{error.code} {_short(error.message)}"
            told = f"{self._what} does not take the username and password: {said}. Nothing was sent."
            return ExecutionFailed(told, untrusted=True)
        if isinstance(error, SMTPResponseException) and 400 <= error.code < 600:
            kind = Transient if error.code < 500 else ExecutionFailed
            told = f"{self._what} refused: {error.code} {_short(error.message)}. Nothing was sent."
            return kind(told, untrusted=True)
        passes = Transient if isinstance(error, OSError) else ExecutionFailed
        return self.ended(passes, f"{self._what} failed: {_short(_words(error))}.", untrusted=True)


def _smtp_errors() -> tuple[type[Exception], ...]:
    from aiosmtplib import SMTPException

    return SMTPException, OSError, ValueError  # ValueError: what a server says may break the library's own rules


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _words(error: Exception) -> str:
    return str(getattr(error, "message", "") or error) or type(error).__name__


def _short(text: str) -> str:
    words = " ".join(text.encode("utf-8", "replace").decode().split()).rstrip(".")
    return words if len(words) <= 300 else f"{words[:300]}…"
