"""A secret is in no byte that is written anywhere."""

import asyncio
import json
import tempfile
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from ferrule.store import ToolCallRecord, ToolKnowledgeStore

SECRETS = st.text(min_size=2, max_size=12).map(lambda text: f"S3cret{text}")


@given(st.lists(SECRETS, min_size=1, max_size=4))
@example(['S3cret"\\\n', "S3cret\0é", "S3cret\ud800", "S3cret 漢字/?&="])
def test_no_file_contains_a_secret_at_any_time(secrets):
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(record_secrets(Path(directory), secrets))


async def record_secrets(directory: Path, secrets: list[str]) -> None:
    async with ToolKnowledgeStore(str(directory / "calls.db")) as store:
        for number, secret in enumerate(secrets):
            record = ToolCallRecord(record_id=str(number), tool_name="login", params={"pin": secret, "api_key": secret})
            store.record_started(record, secret_names=frozenset({"pin"}))
            record.status, record.error = "failed", f"{secret} is wrong"
            record.result = {"said": json.dumps({"token": secret}), secret: [f"https://bob:{secret}@host", secret]}
            store.record_finished(record, secret_names=frozenset({"pin"}))
        assert_not_written(directory, secrets)
        await store.flush()
        assert_not_written(directory, secrets)
        assert len(await store.query_call_records()) == len(secrets)


def assert_not_written(directory: Path, secrets: list[str]) -> None:
    content = b"".join(path.read_bytes() for path in directory.rglob("*") if path.is_file())
    assert b"login" in content
    assert b"S3cret" not in content, secrets


async def test_a_record_with_very_many_secrets_shows_nothing_and_stays_a_record(tmp_path: Path):
    tokens = [f"S3cret-{number}" for number in range(300)]
    async with ToolKnowledgeStore(str(tmp_path / "calls.db")) as store:
        record = ToolCallRecord(record_id="1", tool_name="login", params={"tokens": tokens, "user": "bob"})
        store.record_started(record)
        record.status, record.error, record.result = "failed", f"{tokens[299]} is wrong", {"said": tokens[150]}
        store.record_finished(record)
        [stored] = await store.query_call_records()
        assert (stored.params, stored.result) == ({"[redacted]": "[redacted]"}, {"[redacted]": "[redacted]"})
        assert (stored.tool_name, stored.error) == ("login", "[redacted]")
        assert_not_written(tmp_path, tokens)
