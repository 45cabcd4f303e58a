"""Files that are there whole or not at all.

A new file has no name until all of it is written; then it gets one, in the place of the old file or, where there must
be none, only if there is none. Who reads meanwhile sees the old content, and a call that is killed leaves nothing.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from secrets import token_hex
from typing import BinaryIO, Final

from ferrule.tools.files.workspace import TEMPORARY

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NAMELESS: Final = getattr(os, "O_TMPFILE", 0)
_DESCRIPTORS: Final = "/proc/self/fd"
_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS, errno.EXDEV})


@contextmanager
def new_file(folder: int, name: str, *, replaces: bool = False, mode: int | None = None) -> Iterator[BinaryIO]:
    """A file to write to, which gets its name in the end. FileExistsError if it is taken, unless it `replaces` that."""
    descriptor, temporary = _open(folder)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            yield file
        os.fsync(descriptor)
        if mode is not None:
            os.fchmod(descriptor, mode)
        if replaces:
            temporary = temporary or _give_name(descriptor, folder)
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            temporary = None
        else:
            _link(descriptor, temporary, folder, name)
    finally:
        os.close(descriptor)
        if temporary is not None:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)


def _open(folder: int) -> tuple[int, str | None]:
    """A file without a name where the system has them, else one with a name that says that it is not finished."""
    if _NAMELESS and os.path.isdir(_DESCRIPTORS):
        with suppress(OSError):  # not every file system has them
            return os.open(".", os.O_WRONLY | _NAMELESS | os.O_CLOEXEC, 0o666, dir_fd=folder), None
    name = _temporary_name()
    return os.open(name, _NEW, 0o666, dir_fd=folder), name


def _give_name(descriptor: int, folder: int) -> str:
    name = _temporary_name()
    os.link(f"{_DESCRIPTORS}/{descriptor}", name, dst_dir_fd=folder, follow_symlinks=True)
    return name


def _link(descriptor: int, temporary: str | None, folder: int, name: str) -> None:
    """To link, unlike to rename, never takes the place of something else."""
    if temporary is None:
        os.link(f"{_DESCRIPTORS}/{descriptor}", name, dst_dir_fd=folder, follow_symlinks=True)
        return
    try:
        os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _rename_to_new(source=(folder, temporary), target=(folder, name))


def _rename_to_new(*, source: tuple[int, str], target: tuple[int, str]) -> None:
    """To rename, where there are no links: an empty file makes the name ours, and is gone again if that fails."""
    (here, old), (there, new) = source, target
    os.close(os.open(new, _NEW, 0o666, dir_fd=there))
    try:
        os.rename(old, new, src_dir_fd=here, dst_dir_fd=there)
    except OSError:
        os.unlink(new, dir_fd=there)
        raise


def move(*, source: tuple[int, str], target: tuple[int, str], is_folder: bool) -> None:
    """Give a file or a folder another name. FileExistsError if that is taken; by an empty folder a folder's may be."""
    (here, old), (there, new) = source, target
    if is_folder:
        os.rename(old, new, src_dir_fd=here, dst_dir_fd=there)
        return
    try:
        os.link(old, new, src_dir_fd=here, dst_dir_fd=there, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _rename_to_new(source=source, target=target)
    else:
        os.unlink(old, dir_fd=here)


def _temporary_name() -> str:
    return f"{TEMPORARY}{token_hex(8)}.tmp"
