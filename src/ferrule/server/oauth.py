"""Tokens of an external issuer: this server is a resource server by OAuth, and issues none itself.

A client finds the issuer through `/.well-known/oauth-protected-resource` (RFC 9728), gets a token there, and sends it
like one of ours. Its signature, issuer, audience and lifetime are checked here; its scopes give it roles.
"""

from __future__ import annotations

import asyncio
import logging
import time
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ferrule.config import OAuthSection
from ferrule.core.permission import EFFECT_TIERS
from ferrule.errors import SetupError, StoreError
from ferrule.server.responses import json_response
from ferrule.server.tokens import MAX_NAME_LENGTH, ROLES, AccessToken, is_valid_name
from ferrule.store.tokens import EXTERNAL_PREFIX

if TYPE_CHECKING:
    from jwt import PyJWK

logger = logging.getLogger("ferrule.server")

METADATA_PATH: Final = "/.well-known/oauth-protected-resource"
ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""With a public key of the issuer; never one with a shared secret, and never `none`."""
MIN_REFRESH_INTERVAL: Final = 10.0
"""Seconds between two requests for the keys, whatever key ids clients send."""
KEY_LIFETIME: Final = 300.0
KEY_TIMEOUT: Final = 10.0
CLOCK_TOLERANCE: Final = 30.0


class TokenVerifier:
    """Checks the tokens of an issuer."""

    def __init__(self, section: OAuthSection) -> None:
        for role in section.roles.values():
            if role not in ROLES:
                raise SetupError(f"[server.oauth] gives a scope the role {role!r}. Roles are: {', '.join(ROLES)}.")
        if section.max_effect not in EFFECT_TIERS:
            raise SetupError(f"[server.oauth]: max_effect must be one of {', '.join(EFFECT_TIERS)}.")
        self.section = section
        self._keys: dict[str, PyJWK] = {}
        self._fetched_at = float("-inf")
        self._lock = asyncio.Lock()

    async def verify(self, text: str) -> AccessToken | None:
        """Return what the holder of a token may do; None for a token that is not valid. StoreError without its keys."""
        import jwt

        try:
            header = jwt.get_unverified_header(text)
            key = await self._find_key(str(header.get("kid", "")))
            if key is None or header.get("alg") not in ALGORITHMS:
                return None
            claims = jwt.decode(
                text,
                key.key,
                algorithms=[header["alg"]],
                audience=self.section.audience,
                issuer=self.section.issuer,
                leeway=CLOCK_TOLERANCE,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except jwt.PyJWTError as error:
            logger.info("error=<%s> | a token of the issuer was refused", error)
            return None
        return self._make_token(claims)

    def _make_token(self, claims: dict[str, Any]) -> AccessToken | None:
        section, scopes = self.section, claims.get("scope", claims.get("scp", ""))
        names = scopes.split() if isinstance(scopes, str) else [str(each) for each in scopes]
        subject, issuer = str(claims["sub"]), section.issuer.partition("://")[2].rstrip("/")
        tenant = str(claims.get(section.tenant_claim, "")) if section.tenant_claim else ""
        if section.tenant_claim and not is_valid_name(tenant):
            logger.warning("tenant=<%s> | a token of the issuer was refused: its tenant cannot be used", tenant)
            return None
        token_id = EXTERNAL_PREFIX + sha256(f"{issuer}\n{subject}".encode()).hexdigest()[:32]
        # Names decide which rules apply, and whose calls and approvals a client has. Characters that no name may have
        # could imitate another one, and with the issuer it is the name of no token of ours, nor of another issuer.
        name = f"{subject if is_valid_name(subject) else token_id}@{issuer}"
        return AccessToken(
            token_id=token_id,
            name=name,
            display_name=str(claims.get(section.name_claim, ""))[:MAX_NAME_LENGTH],
            roles=frozenset(section.roles[name] for name in names if name in section.roles),  # type: ignore[misc]
            tools=None if section.tools is None else frozenset(section.tools),
            max_effect=section.max_effect,
            tenant=tenant,
            created_at=float(claims.get("iat", 0)),
            expires_at=float(claims["exp"]),
            is_external=True,
        )

    async def _find_key(self, key_id: str) -> PyJWK | None:
        async with self._lock:
            age = time.monotonic() - self._fetched_at
            if age > KEY_LIFETIME or (key_id not in self._keys and age > MIN_REFRESH_INTERVAL):
                await self._fetch_keys()
        return self._keys.get(key_id)

    async def _fetch_keys(self) -> None:
        import httpx
        import jwt

        self._fetched_at = time.monotonic()
        try:
            async with httpx.AsyncClient(timeout=KEY_TIMEOUT, trust_env=False) as client:
                url = self.section.jwks_url or await self._discover_jwks(client)
                keys = jwt.PyJWKSet.from_dict((await client.get(url)).raise_for_status().json())
        except (httpx.HTTPError, ValueError, KeyError, jwt.PyJWTError) as error:
            logger.warning("issuer=<%s>, error=<%s> | its keys could not be read", self.section.issuer, error)
            if not self._keys:
                raise StoreError(f"the keys of the issuer {self.section.issuer} cannot be read") from None
            return
        self._keys = {str(key.key_id or ""): key for key in keys.keys}

    async def _discover_jwks(self, client: Any) -> str:
        base = self.section.issuer.rstrip("/")
        for name in ("oauth-authorization-server", "openid-configuration"):
            response = await client.get(f"{base}/.well-known/{name}")
            if response.status_code == 200 and response.json().get("issuer", "").rstrip("/") == base:
                return str(response.json()["jwks_uri"])
        raise KeyError("jwks_uri")

    # What clients are told

    @property
    def challenge(self) -> str:
        """Of the header `WWW-Authenticate`: where a client learns which issuer to ask."""
        origin = "/".join(self.section.audience.split("/")[:3])
        return f'Bearer resource_metadata="{origin}{METADATA_PATH}", scope="{" ".join(self.section.roles)}"'

    def routes(self) -> list[Route]:
        """Return the description of this server as a protected resource, also under the path of the resource."""
        path = "/" + "/".join(self.section.audience.split("/")[3:])
        paths = {METADATA_PATH, METADATA_PATH + path.rstrip("/"), f"{METADATA_PATH}/mcp"}
        return [Route(each, self._describe, methods=["GET"]) for each in sorted(paths)]

    async def _describe(self, request: Request) -> Response:
        return json_response(
            {
                "resource": self.section.audience,
                "authorization_servers": [self.section.issuer],
                "scopes_supported": sorted(self.section.roles),
                "bearer_methods_supported": ["header"],
                "resource_name": "Ferrule",
            }
        )
