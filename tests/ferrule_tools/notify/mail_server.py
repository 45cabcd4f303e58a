"""Real mail servers on this machine: aiosmtpd, and one that follows a script for what no decent server does."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from ferrule_tools.notify import ChannelConfig


@dataclass
class MailServer:
    """A server, and what it was given."""

    port: int = 0
    answers: Mapping[str, str] = field(default_factory=dict)
    """What it answers instead of what it would: by command, or by recipient."""
    is_silent: bool = False
    """Whether it never answers after a text has come."""
    unanswered: int = 0
    envelopes: list[Any] = field(default_factory=list)

    @property
    def letters(self) -> list[EmailMessage]:
        return [message_from_bytes(each.content, _class=EmailMessage, policy=default) for each in self.envelopes]

    async def handle_MAIL(self, server: Any, session: Any, envelope: Any, address: str, options: Any) -> str:
        envelope.mail_from = address
        return self.answers.get("MAIL", "250 OK")

    async def handle_RCPT(self, server: Any, session: Any, envelope: Any, address: str, options: Any) -> str:
        answer = self.answers.get(address, "250 OK")
        if answer.startswith("250"):
            envelope.rcpt_tos.append(address)
        return answer

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        if self.is_silent:
            self.unanswered += 1
            await asyncio.Event().wait()
        answer = self.answers.get("DATA", "250 OK")
        if answer.startswith("250"):
            self.envelopes.append(envelope)
        return answer


@asynccontextmanager
async def mail_server(server: MailServer, tls: ssl.SSLContext | None = None, **options: Any) -> AsyncIterator[None]:
    """aiosmtpd. With `tls` it takes STARTTLS, and the password `s3cret-pass` of `bob`."""
    aiosmtpd = pytest.importorskip("aiosmtpd.smtp")

    def authenticate(_: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> Any:
        is_valid = (data.login, data.password) == (b"bob", b"s3cret-pass")
        return aiosmtpd.AuthResult(success=is_valid, handled=is_valid)

    sessions: list[Any] = []

    def make() -> Any:
        kwargs = {"hostname": "mail.example", "loop": loop, "authenticator": authenticate, "tls_context": tls}
        sessions.append(aiosmtpd.SMTP(server, **kwargs, **options))
        return sessions[-1]

    loop = asyncio.get_running_loop()
    listening = await loop.create_server(make, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield
    finally:
        listening.close()
        for each in sessions:
            await asyncio.wait({each._handler_coroutine}, timeout=5)
        await listening.wait_closed()


@asynccontextmanager
async def scripted_server(lines: Sequence[str | None], tls: ssl.SSLContext | None = None) -> AsyncIterator[MailServer]:
    """Says one line after each that it reads, the first at once; None: nothing more is said.

    At the end of its lines it hangs up. What it reads after 354 is one thing up to the single dot.
    """
    server = MailServer()
    talks: set[asyncio.Task[None]] = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for line in lines:
            if line is None:
                await reader.read()
                break
            writer.write(f"{line}\r\n".encode())
            if line[3:4] != "-":
                await reader.readuntil(b"\r\n.\r\n" if line.startswith("354") else b"\r\n")
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        talks.add(task)
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await talk(reader, writer)
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        for task in talks:
            task.cancel()
        await asyncio.gather(*talks, return_exceptions=True)
        await listening.wait_closed()


def mail_channel(server: MailServer, **more: Any) -> ChannelConfig:
    settings: dict[str, Any] = {
        "kind": "email",
        "host": "127.0.0.1",
        "port": server.port,
        "security": "none",
        "sender": "Ferrule <ferrule@example.com>",
        "to": ["ops@example.com"],
    }
    return ChannelConfig(**{**settings, **more})


def certificate(folder: Path, host: str = "127.0.0.1") -> tuple[ssl.SSLContext, str]:
    """A context for a server with a self-made certificate, and the file of those who trust it."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ferrule test")])
    now = datetime.now(UTC)
    try:
        names = x509.SubjectAlternativeName([x509.IPAddress(ip_address(host))])
    except ValueError:
        names = x509.SubjectAlternativeName([x509.DNSName(host)])
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    public, private = folder / "mail.pem", folder / "mail.key"
    public.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption_algorithm=plain)
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(public, private)
    return context, public.name
