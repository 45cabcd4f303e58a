"""The question before a command runs what a folder contains."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from ferrule.cli.terminal import print_error
from ferrule.config import FerruleConfig
from ferrule.folder_trust import (
    REPLACED,
    FolderTrust,
    describe_changes,
    describe_contents,
    describe_items,
    read_folder_trust,
    read_servers,
    trust_folder,
)


def decide_trust(config: FerruleConfig) -> FolderTrust:
    """The record of a project's folder, after asking about what is new in it if there is a terminal."""
    record = read_folder_trust(config.root)
    if not record.is_trusted and not has_terminal():
        return record
    servers = read_servers(config)
    if not record.is_trusted:
        reason = REPLACED if record.was_replaced else "It is not trusted yet."
        question = [f"ferrule: {record.folder}: {reason} Its files decide what is run:"]
        if confirm([*question, *describe_contents(config)], "Do you trust the files of this folder?"):
            return trust_folder(config, servers)
        return record
    unknown = {n: s for n, s in servers.items() if s.trust_digest not in record.servers and not s.disabled}
    if unknown:
        question = [f"ferrule: these servers of {config.engine_config.mcp_file} are new or changed:"]
        question += describe_items(
            "server", [describe_changes(name, server, record) for name, server in unknown.items()]
        )
        if confirm(question, "Start them from now on?"):
            return trust_folder(config, unknown)
    return record


def has_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(lines: Iterable[str], question: str) -> bool:
    """Whether the user says yes; False where there is no terminal to ask at."""
    if not has_terminal():
        return False
    for line in lines:
        print_error(line)
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    with _interruptible():
        return sys.stdin.readline().strip().lower() in ("y", "yes")


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C end a read that blocks, also inside an event loop that has its own handler."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
