"""A process is killed while it uses an approval: the approval is not used twice, and one that was used has its call."""

import asyncio
import signal
from pathlib import Path

import pytest

from ferrule import UnifiedToolLibrary
from tests.policy.dying_process import MOMENTS, VARIABLE, make_payment, pay
from tests.support.processes import ROOT, run_python

PROGRAM = "import asyncio, sys; from tests.policy import dying_process as p; asyncio.run(p.pay_and_die(*sys.argv[1:]))"


@pytest.mark.integration
@pytest.mark.parametrize("store_url", ["sqlite", "postgres"], indirect=True)
@pytest.mark.parametrize("moment", MOMENTS)
async def test_an_approval_and_the_record_of_its_call_survive_together(
    store_url: str, tmp_path: Path, moment: str, monkeypatch: pytest.MonkeyPatch
):
    payments = tmp_path / "payments"
    async with UnifiedToolLibrary(store=store_url) as library:
        library.register(make_payment(payments))
        approval_id: str = (await pay(library, "o1")).metadata["approval_id"]
        await library.engine.approvals.record_decision(approval_id, True)
    monkeypatch.setenv(VARIABLE, moment)
    done = await asyncio.to_thread(run_python, "-c", PROGRAM, store_url, str(payments), approval_id, cwd=ROOT)
    assert done.returncode == -signal.SIGKILL, done.stderr
    monkeypatch.delenv(VARIABLE)
    async with UnifiedToolLibrary(store=store_url) as library:
        library.register(make_payment(payments))
        request = await library.engine.approvals.get(approval_id)
        record = await library.engine.store.get_call_record(request.used_by)
        if MOMENTS[moment]:
            assert request.state == "used" and record is not None
            assert (record.status, record.params) == ("interrupted", {"order": "o1"})
            assert record.metadata["approval_id"] == approval_id
        else:
            assert (request.state, request.used_by, record) == ("approved", "", None)
        again = await pay(library, "o1", approval_id)
        assert again.error_type == ("approval_required" if MOMENTS[moment] else None)
        running = await library.engine.store.query_call_records(status="running")
        assert running == []
    paid = payments.read_text().splitlines() if payments.exists() else []
    assert paid == ([] if moment in ("both are in the database", "the tool starts") else ["o1"])
