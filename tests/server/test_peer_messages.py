"""Messages between the workers of one `ferrule serve`."""

import asyncio
import json
import math
import queue
import socketserver
import threading
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from ferrule.core.aio import cancel_all
from ferrule.server.fleet import MESSAGES_PATH, SOCKET_URL, PeerChannel, PeerRoute

pytestmark = pytest.mark.integration


async def test_what_json_cannot_say_reaches_other_workers_and_stops_no_later_message(tmp_path):
    requests: queue.Queue[tuple[str, Any]] = queue.Queue()

    class Worker(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            requests.put((self.path, json.loads(self.rfile.read(int(self.headers["content-length"])))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    path = str(tmp_path / "worker.sock")

    async def find_workers() -> dict[str, PeerRoute]:
        return {"other": PeerRoute(url=SOCKET_URL, socket=path, secret="s")}

    with socketserver.ThreadingUnixStreamServer(path, Worker) as server:
        threading.Thread(target=server.serve_forever).start()
        channel = PeerChannel(find_workers)
        sending = asyncio.create_task(channel.run())
        try:
            channel.send({"kind": "event", "fraction": math.nan, "message": "file \udc80"})
            _, [first] = await asyncio.to_thread(requests.get, timeout=60)
            channel.send({"kind": "cancel_run", "run_id": "r"})
            second = await asyncio.to_thread(requests.get, timeout=60)
        finally:
            await cancel_all([sending])
            server.shutdown()
    assert first["kind"] == "event" and first["fraction"] is None
    assert second == (MESSAGES_PATH, [{"kind": "cancel_run", "run_id": "r"}])
