"""The system calls that a script in a full Python may not make, as a program for the kernel (seccomp).

Refused is what reaches other processes, what makes a session that nobody finds, what opens the network, and memory
that belongs to no process and so is counted by nobody. Namespaces, where there are any, keep a script in; this keeps
the ways small by which it could get out of them.
"""

from __future__ import annotations

import platform
import struct
from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias


class _Machine(NamedTuple):
    """A kind of processor: how the kernel names it, and its numbers of system calls."""

    name: int
    calls: dict[str, int]


_EVERYWHERE: Final = dict(
    pidfd_send_signal=424, io_uring_setup=425, io_uring_enter=426, io_uring_register=427, open_tree=428,
    move_mount=429, fsopen=430, fsconfig=431, fsmount=432, pidfd_open=434, clone3=435, pidfd_getfd=438,
    process_madvise=440, mount_setattr=442, memfd_secret=447,
)  # fmt: skip
_MACHINES: Final = {
    "x86_64": _Machine(0xC000003E, _EVERYWHERE | dict(
        ioctl=16, shmget=29, shmat=30, shmctl=31, socket=41, socketpair=53, clone=56, kill=62, semget=64, semop=65,
        semctl=66, msgget=68, msgsnd=69, msgrcv=70, msgctl=71, fcntl=72, ptrace=101, syslog=103, setsid=112,
        rt_sigqueueinfo=129, setpriority=141, sched_setparam=142, sched_setscheduler=144, pivot_root=155, chroot=161,
        mount=165, umount2=166, init_module=175, delete_module=176, tkill=200, sched_setaffinity=203, semtimedop=220,
        tgkill=234, mq_open=240, kexec_load=246, add_key=248, request_key=249, keyctl=250, ioprio_set=251,
        unshare=272, rt_tgsigqueueinfo=297, perf_event_open=298, prlimit64=302, name_to_handle_at=303,
        open_by_handle_at=304, setns=308, process_vm_readv=310, process_vm_writev=311, kcmp=312, finit_module=313,
        sched_setattr=314, memfd_create=319, kexec_file_load=320, bpf=321, userfaultfd=323,
    )),
    "aarch64": _Machine(0xC00000B7, _EVERYWHERE | dict(
        fcntl=25, ioctl=29, ioprio_set=30, umount2=39, mount=40, pivot_root=41, chroot=51, unshare=97, kexec_load=104,
        init_module=105, delete_module=106, syslog=116, ptrace=117, sched_setparam=118, sched_setscheduler=119,
        sched_setaffinity=122, kill=129, tkill=130, tgkill=131, rt_sigqueueinfo=138, setpriority=140, setsid=157,
        mq_open=180, msgget=186, msgctl=187, msgrcv=188, msgsnd=189, semget=190, semctl=191, semtimedop=192,
        semop=193, shmget=194, shmctl=195, shmat=196, socket=198, socketpair=199, add_key=217, request_key=218,
        keyctl=219, clone=220, rt_tgsigqueueinfo=240, perf_event_open=241, prlimit64=261, name_to_handle_at=264,
        open_by_handle_at=265, setns=268, process_vm_readv=270, process_vm_writev=271, kcmp=272, finit_module=273,
        sched_setattr=274, memfd_create=279, bpf=280, userfaultfd=282, kexec_file_load=294,
    )),
}  # fmt: skip
_NEVER: Final = (
    # memory that is nobody's
    *("memfd_create", "memfd_secret", "shmget", "shmat", "shmctl", "semget", "semop", "semctl", "semtimedop"),
    *("msgget", "msgsnd", "msgrcv", "msgctl", "mq_open", "add_key", "request_key", "keyctl"),
    # other processes
    *("ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp", "pidfd_open", "pidfd_getfd"),
    *("pidfd_send_signal", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "setsid"),
    # other worlds
    *("unshare", "setns", "mount", "umount2", "pivot_root", "chroot", "open_tree", "move_mount", "fsopen"),
    *("fsconfig", "fsmount", "mount_setattr", "name_to_handle_at", "open_by_handle_at"),
    # the kernel itself
    *("bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register"),
    *("kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "syslog"),
)
_NEW_NAMESPACES: Final = 0x7E020000
_LOCAL_SOCKET: Final = 1
_DATAGRAMS: Final = 2
"""The bit that SOCK_DGRAM and SOCK_RAW have, and SOCK_STREAM and SOCK_SEQPACKET have not."""
_SIGNALS_TO_OTHERS: Final = {"fcntl": (8, 10, 15), "ioctl": (0x8901, 0x8902)}
"""F_SETOWN, F_SETSIG, F_SETOWN_EX; FIOSETOWN, SIOCSPGRP: who is sent which signal when something can be read."""
_PACE_OF_OTHERS: Final = (
    *("setpriority", "ioprio_set", "sched_setparam", "sched_setscheduler", "sched_setaffinity", "sched_setattr"),
)

_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_LOAD, _RETURN, _IS, _AT_LEAST, _HAS_BITS = 0x20, 0x06, 0x15, 0x35, 0x45
_ALLOW, _KILL, _EPERM, _ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026

Step: TypeAlias = tuple[int, int, int, int]
"""An instruction: what to do, how many to skip if so, how many if not, and a number for it."""
Walls: TypeAlias = Literal["namespaces", "none"]


def is_known_here() -> bool:
    """Whether there is a program for this machine."""
    return platform.system() == "Linux" and platform.machine() in _MACHINES


def forbidding_program(walls: Walls, process: int) -> bytes:
    """The program, as the kernel takes it. Where no namespaces are around the `process`, it forbids more."""
    machine = _MACHINES[platform.machine()]
    steps = [*_for_machine(machine), *_rules(machine.calls, walls, process), _return(_ALLOW)]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def _for_machine(machine: _Machine) -> Iterator[Step]:
    """Other ways to call the kernel have other numbers, so they are closed."""
    yield _load(_ARCHITECTURE)
    yield _IS, 1, 0, machine.name
    yield _return(_KILL)
    yield _load(_NUMBER)
    yield _AT_LEAST, 0, 1, 0x40000000
    yield _return(_KILL)


def _rules(calls: dict[str, int], walls: Walls, process: int) -> Iterator[Step]:
    for name in _NEVER:
        yield from ((_IS, 0, 1, calls[name]), _return(_EPERM))
    # Its flags cannot be looked at; who is told that there is no clone3 uses clone.
    yield from ((_IS, 0, 1, calls["clone3"]), _return(_ENOSYS))
    yield from _argument(calls["clone"], 0, (_HAS_BITS, 0, 1, _NEW_NAMESPACES), then=_EPERM, otherwise=_ALLOW)
    yield from _argument(calls["prlimit64"], 0, (_IS, 0, 1, 0), then=_ALLOW, otherwise=_EPERM)
    if walls == "namespaces":
        yield from _argument(calls["socket"], 0, (_IS, 0, 1, _LOCAL_SOCKET), then=_ALLOW, otherwise=_EPERM)
        return
    # Without walls the sockets of other programs are in reach, and those may do anything for who asks.
    for name in ("socket", "tkill", *_PACE_OF_OTHERS):
        yield from ((_IS, 0, 1, calls[name]), _return(_EPERM))
    # One of a pair for datagrams could still be sent from to any other socket.
    yield from _argument(calls["socketpair"], 1, (_HAS_BITS, 0, 1, _DATAGRAMS), then=_EPERM, otherwise=_ALLOW)
    for name in ("kill", "tgkill"):
        yield from _argument(calls[name], 0, (_IS, 0, 1, process), then=_ALLOW, otherwise=_EPERM)
    for name, commands in _SIGNALS_TO_OTHERS.items():
        yield from _without(calls[name], commands)


def _without(number: int, commands: Sequence[int]) -> Iterator[Step]:
    """A call whose second argument says what it does, without some of that."""
    yield _IS, 0, len(commands) + 3, number
    yield _load(_ARGUMENTS + 8)
    for left, command in enumerate(reversed(commands)):
        yield _IS, len(commands) - left, 0, command
    yield _return(_ALLOW)
    yield _return(_EPERM)


def _argument(number: int, argument: int, test: Step, *, then: int, otherwise: int) -> Iterator[Step]:
    """What becomes of a call is decided by one of its arguments."""
    yield _IS, 0, 4, number
    yield _load(_ARGUMENTS + 8 * argument)
    yield test
    yield _return(then)
    yield _return(otherwise)


def _load(offset: int) -> Step:
    return _LOAD, 0, 0, offset


def _return(verdict: int) -> Step:
    return _RETURN, 0, 0, verdict
