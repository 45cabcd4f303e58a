"""Whole outputs, kept by their content."""

import os
import time
from datetime import timedelta
from hashlib import sha256

import pytest

from ferrule.errors import StoreError
from ferrule.store import Artifact, ArtifactStore, DeletionReport, ToolKnowledgeStore
from tests.store.records import finish_record


@pytest.fixture(params=["memory", "files"])
def artifacts(request, tmp_path):
    return ArtifactStore(tmp_path / "artifacts" if request.param == "files" else None)


def test_an_artifact_comes_back_by_its_id(artifacts):
    artifact = artifacts.add(b"\x00long", "text/plain")
    assert artifact == Artifact(artifact_id=sha256(b"\x00long").hexdigest(), size=5, media_type="text/plain")
    assert artifacts.get(artifact.artifact_id) == b"\x00long"
    assert artifacts.add(b"\x00long", "text/plain") == artifact


@pytest.mark.parametrize("artifact_id", ["a" * 64, "../../etc/passwd", "", "A" * 64, "a" * 65, f"{'a' * 64}\n"])
def test_an_id_that_is_none_is_an_error(artifacts, artifact_id):
    with pytest.raises(StoreError, match="artifact"):
        artifacts.get(artifact_id)


def test_memory_keeps_the_newest(monkeypatch):
    monkeypatch.setattr("ferrule.store.artifacts.MAX_MEMORY_BYTES", 10)
    artifacts = ArtifactStore()
    first, second, third = (artifacts.add(letter * 5, "text/plain").artifact_id for letter in (b"a", b"b", b"c"))
    assert (artifacts.get(second), artifacts.get(third)) == (b"bbbbb", b"ccccc")
    with pytest.raises(StoreError, match="no artifact"):
        artifacts.get(first)


def test_files_are_only_for_their_owner_and_never_half_written(tmp_path):
    ArtifactStore(tmp_path / "artifacts").add(b"secret", "text/plain")
    (file,) = [path for path in (tmp_path / "artifacts").rglob("*") if path.is_file()]
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_directory_that_cannot_be_written_is_a_store_error(tmp_path):
    (tmp_path / "artifacts").write_text("a file")
    with pytest.raises(StoreError, match="an output of 3 bytes cannot be stored"):
        ArtifactStore(tmp_path / "artifacts").add(b"abc", "text/plain")


async def test_an_artifact_goes_with_the_last_record_that_refers_to_it(tmp_path):
    async with ToolKnowledgeStore(str(tmp_path / "calls.db")) as store:
        shared, alone, fresh = (store.artifacts.add(data, "text/plain").artifact_id for data in (b"s", b"a", b"f"))
        for artifact_id in (shared, alone, fresh):
            finish_record(store, started_at=1_000_000_000, artifact_id=artifact_id)
        finish_record(store, artifact_id=shared)
        for artifact_id in (shared, alone):  # written long ago
            os.utime(tmp_path / "calls.db.artifacts" / artifact_id[:2] / artifact_id, (time.time() - 7200,) * 2)
        assert await store.delete_records(older_than=timedelta(days=1)) == DeletionReport(calls=3, artifacts=1)
        assert (store.artifacts.get(shared), store.artifacts.get(fresh)) == (b"s", b"f")
        with pytest.raises(StoreError):
            store.artifacts.get(alone)
