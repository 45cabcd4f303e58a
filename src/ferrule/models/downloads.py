"""Downloading model files (GGUF) into the user's cache: they continue where they stopped, and are checked.

A model is named as on Hugging Face: `owner/repository`, with a quantization (`owner/repository:Q4_K_M`) or a file
(`owner/repository/file.gguf`). `HF_ENDPOINT` names another server with the same API, `HF_TOKEN` is sent if it is set.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import io
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast
from urllib.parse import quote

from ferrule.core.names import did_you_mean
from ferrule.core.patterns import lazy_pattern
from ferrule.errors import SetupError, error_text
from ferrule.store.location import make_directory, user_cache_directory

if TYPE_CHECKING:
    import httpx

_DEFAULT_ENDPOINT: Final = "https://huggingface.co"
_DEFAULT_QUANTIZATIONS: Final = ("q4_k_m", "q4_k_s", "q4_0", "q8_0", "f16")
"""Which file of a repository is taken if the name does not say it, the first that exists."""
_MAGIC: Final = b"GGUF"
_TIMEOUT: Final = 60.0
"""Seconds without any data."""
_NAME = lazy_pattern(r"([\w.-]+/[\w.-]+)(?:/([\w./-]+\.gguf)|:([\w.-]+))?")
_PART_OF_SEVERAL = lazy_pattern(r"-\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)

OnBytes = Callable[[int, int], None]
"""Receives how many bytes there are, and how many there will be."""


class DownloadFailed(SetupError):
    """A model file could not be downloaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """A model file at the server, as its list of files describes it."""

    repository: str
    path: str
    size: int
    sha256: str | None


def downloads_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of downloaded models."""
    return user_cache_directory("models", environ)


def list_downloaded(environ: Mapping[str, str] = os.environ) -> dict[str, Path]:
    """The downloaded models, by the names that `local:` takes."""
    files = sorted(downloads_directory(environ).glob("*/*/**/*.gguf"))
    return {file.stem: file for file in files}


def find_downloaded(name: str, environ: Mapping[str, str] = os.environ) -> Path | None:
    """The downloaded file with this name, with or without its suffix; None if there is none."""
    return list_downloaded(environ).get(name.removesuffix(".gguf"))


async def download_model(name: str, environ: Mapping[str, str] = os.environ, on_bytes: OnBytes | None = None) -> Path:
    """The file of a model, which is downloaded unless it is there. Calling it again continues a download."""
    import httpx

    match = _NAME.fullmatch(name.strip())
    if match is None or ".." in name:
        raise SetupError(
            f"{name!r} is not the name of a model. Write owner/repository, owner/repository:Q4_K_M or "
            "owner/repository/file.gguf, as on Hugging Face."
        )
    repository, path, quantization = match.groups()
    endpoint = (environ.get("HF_ENDPOINT") or _DEFAULT_ENDPOINT).rstrip("/")
    token = environ.get("HF_TOKEN")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        async with httpx.AsyncClient(headers=headers, timeout=_TIMEOUT, follow_redirects=True) as client:
            files = await _list_files(client, endpoint, repository)
            chosen = _choose_file(files, repository, path, quantization)
            target = downloads_directory(environ) / repository / chosen.path
            if not (target.is_file() and target.stat().st_size == chosen.size):
                url = f"{endpoint}/{repository}/resolve/main/{quote(chosen.path)}"
                await _download(client, url, chosen, target, on_bytes or (lambda *_: None))
            return target
    except httpx.HTTPError as error:
        problem = error_text(error) or type(error).__name__
        raise DownloadFailed(
            f"{name!r} cannot be downloaded from {endpoint}: {problem}. Run it again to continue."
        ) from error
    except OSError as error:
        raise DownloadFailed(f"{name!r} cannot be written: {error_text(error)}.") from error


# Which file


async def _list_files(client: httpx.AsyncClient, endpoint: str, repository: str) -> list[RemoteFile]:
    url = f"{endpoint}/api/models/{repository}/tree/main?recursive=true"
    response = await client.get(url)
    if response.status_code in (401, 403, 404):
        raise DownloadFailed(
            f"There is no model {repository!r} at {endpoint}, or it needs a token: set HF_TOKEN. "
            f"(status {response.status_code})"
        )
    response.raise_for_status()
    try:
        entries = response.json()
        return [_read_entry(repository, entry) for entry in entries if str(entry["path"]).lower().endswith(".gguf")]
    except (ValueError, TypeError, KeyError) as error:
        raise DownloadFailed(f"{url} did not answer with a list of files. Check HF_ENDPOINT.") from error


def _read_entry(repository: str, entry: Mapping[str, Any]) -> RemoteFile:
    large_file: Mapping[str, Any] = entry.get("lfs") or {}
    digest = large_file.get("oid")
    path = str(entry["path"])
    if path.startswith("/") or ".." in Path(path).parts:
        raise ValueError(f"a path outside the repository: {path!r}")
    size = int(large_file.get("size") or entry["size"])
    return RemoteFile(repository=repository, path=path, size=size, sha256=str(digest) if digest else None)


def _choose_file(
    files: Sequence[RemoteFile], repository: str, path: str | None, quantization: str | None
) -> RemoteFile:
    by_path = {file.path: file for file in files if not _PART_OF_SEVERAL.search(file.path)}
    if not by_path:
        several = " Its files are split into several, which is not supported." if files else ""
        raise SetupError(f"{repository!r} has no GGUF file.{several} Look for a repository whose name ends in GGUF.")
    if path is not None:
        if path not in by_path:
            raise SetupError(f"{repository!r} has no file {path!r}.{did_you_mean(path, by_path)}")
        return by_path[path]
    for suffix in (quantization,) if quantization else _DEFAULT_QUANTIZATIONS:
        for file in by_path.values():
            if re.search(rf"(^|[-._/]){re.escape(suffix)}[.]gguf$", file.path, re.IGNORECASE):
                return file
    if quantization is None and len(by_path) == 1:
        return next(iter(by_path.values()))
    problem = f"has no quantization {quantization!r}" if quantization else "has several files"
    names = ", ".join(sorted(by_path)[:20])
    raise SetupError(f"{repository!r} {problem}. Name one: {repository}/FILE, with FILE one of {names}.")


# Its bytes


async def _download(client: httpx.AsyncClient, url: str, file: RemoteFile, target: Path, on_bytes: OnBytes) -> None:
    make_directory(target.parent)
    part = target.with_name(f"{target.name}.part")
    with part.open("a+b") as output:
        _lock(output, file)
        if output.tell() > file.size:  # of another version
            output.seek(output.truncate(0))
        _check_space(part, file.size - output.tell())
        if output.tell() < file.size:
            await _receive(client, url, output, file.size, on_bytes)
        problem = await asyncio.to_thread(_find_problem, output, file)
        if problem is None:
            os.fsync(output.fileno())
            os.replace(part, target)
            return
        if output.tell() == file.size:  # nothing of it can be used
            part.unlink()
    raise DownloadFailed(f"The download of {file.path!r} {problem}. Run it again.")


async def _receive(client: httpx.AsyncClient, url: str, output: BinaryIO, size: int, on_bytes: OnBytes) -> None:
    """Write what is missing. What was written stays when this ends early, by whatever."""
    start = output.tell()
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    async with client.stream("GET", url, headers=headers) as response:
        response.raise_for_status()
        if start and response.status_code != 206:  # the server sends it from the beginning
            output.seek(output.truncate(0))
        on_bytes(output.tell(), size)
        async for piece in response.aiter_bytes():
            output.write(piece[: size - output.tell()])
            on_bytes(output.tell(), size)
            if output.tell() >= size:
                break
    output.flush()


def _find_problem(output: BinaryIO, file: RemoteFile) -> str | None:
    if output.tell() != file.size:
        return f"is incomplete: {output.tell():,} of {file.size:,} bytes"
    output.seek(0)
    is_model = output.read(len(_MAGIC)) == _MAGIC
    output.seek(0)
    digest = hashlib.file_digest(cast(io.BufferedRandom, output), "sha256").hexdigest()
    if not is_model:
        return "is not a GGUF file. It was deleted"
    if file.sha256 is not None and digest != file.sha256:
        return "is damaged: its checksum is not the one that the server lists. It was deleted"
    return None


def _lock(output: BinaryIO, file: RemoteFile) -> None:
    try:
        fcntl.flock(output, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise DownloadFailed(f"Another process downloads {file.path!r}. Wait until it has finished.") from None
    output.seek(0, os.SEEK_END)


def _check_space(part: Path, needed: int) -> None:
    free = shutil.disk_usage(part.parent).free
    if needed > free:
        raise DownloadFailed(
            f"There is not enough space in {part.parent}: {needed:,} bytes are needed, {free:,} are free. "
            "Delete something, or set XDG_CACHE_HOME to a folder on another disk."
        )
