"""Downloading model files: they continue where they stopped, and only complete and correct ones are kept."""

import os
import shutil
from collections import namedtuple
from hashlib import sha256

import pytest

from ferrule import SetupError, choose_model
from ferrule.models.downloads import DownloadFailed, download_model, list_downloaded
from tests.models.model_server import ModelFiles
from tests.support.http_servers import json_answer, serve_http

pytestmark = pytest.mark.integration

WEIGHTS = b"GGUF" + os.urandom(3_000_000)
FILES = {"README.md": b"read me", "model-Q4_K_M.gguf": WEIGHTS, "model-Q8_0.gguf": b"GGUF" + bytes(10)}


def environ_of(server, tmp_path, **more: str) -> dict[str, str]:
    return {"HF_ENDPOINT": server.url, "XDG_CACHE_HOME": str(tmp_path), **more}


async def test_a_model_is_downloaded_once_and_used_by_its_name(tmp_path):
    steps: list[tuple[int, int]] = []
    async with serve_http(ModelFiles(files=FILES, token="hf_test")) as server:
        environ = environ_of(server, tmp_path, HF_TOKEN="hf_test")
        path = await download_model("owner/model", environ, lambda done, total: steps.append((done, total)))
        requests = len(server.requests)
        assert await download_model("owner/model:q4_k_m", environ) == path
        assert len(server.requests) == requests + 1  # only the list: the file is there
    assert path == tmp_path / "ferrule/models/owner/model/model-Q4_K_M.gguf" and path.read_bytes() == WEIGHTS
    assert steps[0] == (0, len(WEIGHTS)) and steps[-1] == (len(WEIGHTS), len(WEIGHTS))
    assert list_downloaded(environ) == {"model-Q4_K_M": path}
    assert [file.name for file in path.parent.iterdir()] == [path.name]


async def test_a_download_that_was_cut_continues_where_it_stopped(tmp_path):
    handler = ModelFiles(files=FILES, cut_after=1_000_000)
    async with serve_http(handler) as server:
        environ = environ_of(server, tmp_path)
        with pytest.raises(DownloadFailed, match="Run it again"):
            await download_model("owner/model", environ)
        handler.cut_after = None
        path = await download_model("owner/model", environ)
        assert server.requests[-1].headers["range"].startswith("bytes=")
        assert int(server.requests[-1].headers["range"][6:-1]) > 0
    assert path.read_bytes() == WEIGHTS


async def test_a_server_that_cannot_continue_sends_everything_again(tmp_path):
    part = tmp_path / "ferrule/models/owner/model/model-Q4_K_M.gguf.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(WEIGHTS[:1000])
    async with serve_http(ModelFiles(files=FILES, accepts_ranges=False)) as server:
        assert (await download_model("owner/model", environ_of(server, tmp_path))).read_bytes() == WEIGHTS


@pytest.mark.parametrize("rest", [b"", bytes(10)])
async def test_a_part_that_has_everything_or_too_much_is_checked(tmp_path, rest):
    part = tmp_path / "ferrule/models/owner/model/model-Q4_K_M.gguf.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(WEIGHTS + rest)
    async with serve_http(ModelFiles(files=FILES)) as server:
        assert (await download_model("owner/model", environ_of(server, tmp_path))).read_bytes() == WEIGHTS
        assert len(server.requests) == (1 if not rest else 2)


async def test_a_file_with_another_checksum_is_deleted(tmp_path):
    wrong = {"model-Q4_K_M.gguf": sha256(b"other").hexdigest()}
    async with serve_http(ModelFiles(files=FILES, digests=wrong)) as server:
        with pytest.raises(DownloadFailed, match="damaged: its checksum"):
            await download_model("owner/model", environ_of(server, tmp_path))
    assert list((tmp_path / "ferrule/models/owner/model").iterdir()) == []


async def test_a_file_that_is_no_model_is_deleted(tmp_path):
    async with serve_http(ModelFiles(files={"page-Q4_0.gguf": b"<html>sign in</html>"})) as server:
        with pytest.raises(DownloadFailed, match="not a GGUF file"):
            await download_model("owner/model", environ_of(server, tmp_path))
    assert list_downloaded({"XDG_CACHE_HOME": str(tmp_path)}) == {}


async def test_a_disk_without_enough_space_is_known_before_the_download(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10, 9, 1))
    async with serve_http(ModelFiles(files=FILES)) as server:
        with pytest.raises(DownloadFailed, match=r"not enough space .*3,000,004 bytes are needed, 1 are free"):
            await download_model("owner/model", environ_of(server, tmp_path))
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model", "is not the name of a model"),
        ("owner/../x", "is not the name of a model"),
        ("owner/model/../../x.gguf", "is not the name of a model"),
        ("owner/model:Q2_K", "has no quantization 'Q2_K'. Name one: .*model-Q4_K_M.gguf, model-Q8_0.gguf"),
        ("owner/model/model-Q4_K_N.gguf", r"has no file .* Did you mean 'model-Q4_K_M.gguf'"),
        ("owner/other", "There is no model 'owner/other' at http"),
    ],
)
async def test_a_name_that_fits_nothing_says_what_to_write(tmp_path, name, message):
    async with serve_http(ModelFiles(files=FILES)) as server:
        with pytest.raises(SetupError, match=message):
            await download_model(name, environ_of(server, tmp_path))


async def test_a_server_that_lists_paths_outside_the_cache_is_not_believed(tmp_path):
    listing = json_answer([{"type": "file", "path": "../../evil.gguf", "size": 4}])
    async with serve_http(lambda _: listing) as server:
        with pytest.raises(DownloadFailed, match="did not answer with a list of files"):
            await download_model("owner/model", environ_of(server, tmp_path))


def test_a_downloaded_model_is_loaded_by_its_name(tmp_path):
    pytest.importorskip("xllamacpp", reason="needs the extra local")
    file = tmp_path / "ferrule/models/owner/model/tiny-Q4_0.gguf"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"GGUF")
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    assert choose_model("local:tiny-Q4_0", environ).name == "local:tiny-Q4_0"
    with pytest.raises(SetupError, match="no model at 'large'"):
        choose_model("local:large", environ)
