"""HTTPS by the options of the command, and behind a proxy that the configuration names."""

import ipaddress
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from tests.server.serving import Project

pytest.importorskip("fastapi", reason="pip install 'ferrule[server]'")

pytest.importorskip("cryptography", reason="pip install cryptography")

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

pytestmark = pytest.mark.integration


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for this machine, signed by itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .sign(key, hashes.SHA256())
    )
    files = folder / "certificate.pem", folder / "key.pem"
    files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    files[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
    return files


def open_session(http: httpx.Client, **headers: str) -> str:
    response = http.post("/v1/session", headers=headers)
    assert response.status_code == 201, response.text
    return response.headers["set-cookie"]


def test_a_server_with_a_certificate_answers_by_https_only(tmp_path: Path):
    project = Project(tmp_path)
    token = project.create_token("user")
    certificate, key = make_certificate(tmp_path)
    trusted = ssl.create_default_context(cafile=str(certificate))
    options = ("--tls-certificate", str(certificate), "--tls-key", str(key))
    with project.serve(*options, trusted=trusted) as server, server.client(token) as http:
        called = http.post("/v1/tools/add/call", json={"arguments": {"a": 1, "b": 2}})
        assert called.json()["output"] == {"result": 3}
        assert "; Secure" in open_session(http)
        with pytest.raises(httpx.TransportError):
            httpx.get(server.url.replace("https", "http") + "/healthz", timeout=30)
        with pytest.raises(httpx.ConnectError):  # nobody has said that this certificate is to be trusted
            httpx.get(f"{server.url}/healthz", timeout=30)


@pytest.mark.parametrize("proxy", ["127.0.0.1", "192.0.2.1"])
def test_forwarded_headers_are_believed_only_from_the_proxy_that_is_named(tmp_path: Path, proxy: str):
    project = Project(tmp_path, more=f'[server]\ntrusted_proxies = ["{proxy}"]')
    token = project.create_token("user")
    with project.serve() as server, server.client(token) as http:
        cookie = open_session(http, **{"X-Forwarded-Proto": "https", "X-Forwarded-For": "203.0.113.7"})
        assert ("; Secure" in cookie) is (proxy == "127.0.0.1")
        assert "; Secure" not in open_session(http)
