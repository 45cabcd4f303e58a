"""Files of the store are damaged between two runs: bytes changed, zeroed, cut off."""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
import time
from collections import Counter
from hashlib import sha256
from pathlib import Path

from chaos.scenario import Load, Outcome
from ferrule.errors import StoreError
from ferrule.store import ToolCallRecord, ToolKnowledgeStore

RECORDS = 300
PAGE = 4096
OPEN_TIMEOUT = 120.0


def _finish_record(store: ToolKnowledgeStore, number: int) -> ToolCallRecord:
    text = sha256(str(number).encode()).hexdigest() * (1 + number % 5)
    record = ToolCallRecord(record_id=store.new_record_id(), tool_name="note", params={"number": number, "text": text})
    store.record_started(record)
    record.status, record.result = "success", {"result": text}
    store.record_finished(record)
    return record


def _content(record: ToolCallRecord) -> tuple[object, ...]:
    return record.record_id, record.tool_name, record.params, record.status, record.result, record.started_at


def _damage(path: Path, chance: random.Random) -> str:
    """Change some bytes of a file; returns in which way."""
    content = bytearray(path.read_bytes())
    way = chance.choice(["byte", "bytes", "zeros", "cut"])
    if way == "cut":
        del content[chance.randrange(1, len(content)) :]
    elif way == "zeros":
        begin = chance.randrange(len(content))
        end = min(len(content), begin + chance.choice([16, 512, PAGE]))
        content[begin:end] = bytes(end - begin)
    else:
        for _ in range(1 if way == "byte" else chance.randrange(2, 40)):
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)
    return way


def _is_same(content: tuple[object, ...], original: tuple[object, ...] | None) -> bool:
    """Whether it is as it was recorded, or that of a call whose end is not known any more."""
    if original is None:
        return False
    return content == original or content == (*original[:3], "interrupted", {}, original[5])


async def _read(path: Path) -> list[ToolCallRecord]:
    async with ToolKnowledgeStore(str(path)) as store:
        return await asyncio.wait_for(store.query_call_records(limit=10 * RECORDS), OPEN_TIMEOUT)


# ---- the journal


def damage_journal(load: Load) -> Outcome:
    outcome, chance, trials = Outcome(), random.Random(load.seed), 0
    totals: Counter[str] = Counter()
    log = _CountedWarnings()
    logging.getLogger("ferrule.store").addHandler(log)
    original = load.folder / "original.db"
    records = {record.record_id: _content(record) for record in asyncio.run(_leave_journal(original))}
    deadline = time.monotonic() + load.seconds
    while time.monotonic() < deadline or trials < 5:
        path = load.folder / f"{trials}.db"
        journal = path.with_name(f"{path.name}.journal")
        shutil.copytree(original.with_name("original.db.journal"), journal)
        (segment,) = journal.iterdir()
        way = _damage(segment, chance)
        log.number = 0
        try:
            read = {record.record_id: _content(record) for record in asyncio.run(_read(path))}
        except StoreError:  # the changed byte is the version of the format
            read, log.number = {}, 1
        wrong = [content for record_id, content in read.items() if not _is_same(content, records.get(record_id))]
        outcome.check_none(wrong, f"damaged records were imported from a journal ({way}, trial {trials})")
        missing = len(records) - len(read)
        outcome.check(not missing or log.number or way == "cut", f"{missing} records vanished silently ({way})")
        totals.update(read=len(read), skipped=missing, trials=1)
        trials += 1
        shutil.rmtree(journal)
        path.unlink(missing_ok=True)
    outcome.figures |= {"damaged files": trials, "records imported": totals["read"], "not imported": totals["skipped"]}
    outcome.figures |= {"wrong records imported": len(outcome.failures)}
    return outcome


class _CountedWarnings(logging.Handler):
    """What a person would see in the log."""

    number = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.number += record.levelno >= logging.WARNING


async def _leave_journal(path: Path, number: int = RECORDS) -> list[ToolCallRecord]:
    """A journal with records that are in no database yet, as a process leaves it that was killed."""
    async with ToolKnowledgeStore(str(path), defer_import=True) as store:
        return [_finish_record(store, n) for n in range(number)]


# ---- the database


def damage_database(load: Load) -> Outcome:
    outcome, chance, trials = Outcome(), random.Random(load.seed), 0
    logging.getLogger("ferrule.store").addHandler(logging.NullHandler())
    totals: Counter[str] = Counter()
    original = load.folder / "original.db"
    records = {record.record_id: _content(record) for record in asyncio.run(_write_database(original))}
    deadline = time.monotonic() + load.seconds
    while time.monotonic() < deadline or trials < 5:
        path = load.folder / f"{trials}.db"
        shutil.copy(original, path)
        way = _damage(path, chance)
        late = asyncio.run(_leave_journal(path, 1))[0]  # as a process does that was killed meanwhile
        expected = {**records, late.record_id: _content(late)}
        try:
            read = {record.record_id: _content(record) for record in asyncio.run(_read(path))}
            totals["all records" if read == expected else "unnoticed by SQLite"] += 1
            outcome.check(late.record_id in read, f"a new record is lost in a damaged database ({way})")
        except StoreError:
            totals["clear error"] += 1
            is_imported = not list(path.with_name(f"{path.name}.journal").glob("*.jsonl"))
            _restore_backup(original, path)
            recovered = {record.record_id: _content(record) for record in asyncio.run(_read(path))}
            complete = recovered == expected or (is_imported and recovered == records)
            outcome.check(complete, f"not all records are there after a backup is restored ({way})")
        except Exception as error:
            outcome.failures.append(f"a raw {type(error).__name__} instead of a StoreError ({way}): {error}")
        trials += 1
    outcome.figures |= {"damaged files": trials, **totals}
    return outcome


async def _write_database(path: Path) -> list[ToolCallRecord]:
    async with ToolKnowledgeStore(str(path)) as store:
        return [_finish_record(store, number) for number in range(RECORDS)]


def _restore_backup(backup: Path, path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    shutil.copy(backup, path)
