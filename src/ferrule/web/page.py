"""The routes of the web page. Its files are public; what it shows, it reads with the visitor's token from the API."""

from __future__ import annotations

import mimetypes
from functools import lru_cache
from pathlib import Path
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

STATIC_FOLDER: Final = Path(__file__).parent / "static"
VIEWS: Final = ("ask", "runs", "approvals", "tools", "calls", "failures", "access")
"""Paths that the page itself understands: the server answers them, and what is below them, with the page."""
_CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
_PAGE_HEADERS: Final = {"Content-Security-Policy": _CONTENT_SECURITY_POLICY, "Cache-Control": "no-cache"}
_ASSET_HEADERS: Final = {"Cache-Control": "public, max-age=31536000, immutable"}
"""The names of assets contain a hash of their content."""
_NOT_BUILT: Final = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Ferrule</title>
<h1>Ferrule is running, without its web page</h1>
<p>The page is part of every release. In a source checkout, build it with <code>make web</code> or, without the packages
for development, with <code>scripts/web.sh</code>. If you installed Ferrule from the checkout, install it again. Then
restart the server.</p>
<p>The API works without it: see <a href="/openapi.json">/openapi.json</a>.</p>
"""


@lru_cache(maxsize=256)
def _read_file(path: Path, changed_at: int) -> bytes:
    """Keep the files in memory until the page is built again: threads that read files are slow on a busy machine."""
    return path.read_bytes()


def _send(path: Path, media_type: str, headers: dict[str, str]) -> Response:
    return Response(_read_file(path, path.stat().st_mtime_ns), media_type=media_type, headers=headers)


def page_routes(folder: Path = STATIC_FOLDER) -> list[Route]:
    """Return the routes of the page that was built into a folder; without it, `/` says how to build it."""

    async def show_page(request: Request) -> Response:
        index = folder / "index.html"
        if not index.is_file():
            return HTMLResponse(_NOT_BUILT, 200 if request.url.path == "/" else 404)
        return _send(index, "text/html", _PAGE_HEADERS)

    async def send_asset(request: Request) -> Response:
        name = request.path_params["name"]  # one segment: it cannot leave the folder
        path = folder / "assets" / name
        accepts_gzip = "gzip" in request.headers.get("accept-encoding", "")
        packed = path.with_name(f"{name}.gz")
        if not path.is_file() or path.is_symlink() or name.endswith(".gz"):
            raise HTTPException(404, f"There is no file {name!r}.")
        headers = dict(_ASSET_HEADERS)
        if accepts_gzip and packed.is_file():
            path, headers = packed, {**headers, "Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
        media_type = mimetypes.guess_type(name)[0] or "application/octet-stream"
        return _send(path, media_type, headers)

    async def send_icon(request: Request) -> Response:
        icon = folder / "favicon.svg"
        if not icon.is_file():
            raise HTTPException(404, "There is no icon.")
        return _send(icon, "image/svg+xml", {"Cache-Control": "max-age=86400"})

    pages = ["/", *(path for view in VIEWS for path in (f"/{view}", f"/{view}/{{rest:path}}"))]
    return [
        *(Route(path, show_page) for path in pages),
        Route("/assets/{name}", send_asset),
        Route("/favicon.svg", send_icon),
    ]
