"""Publish a file or a folder whole or not at all, even with failures, kills and several writers of one output.

The caller's block fills a hidden temporary in the folder of the output: `.NAME.xlexport-` with 16 random digits. The
temporary is synchronized, then it takes the place of the output in one step. A link at the output is itself replaced;
its target stays. A device, pipe or socket is never replaced. Modes follow the umask.

A lock shows which writers are alive, because process numbers mean nothing in another container or on another machine:

- A writer makes the lock file of its temporary first, and locks it. It removes this file last. A temporary without a
  locked lock file was therefore left by a killed process; the next writer removes it together with its lock file.
- Another process may remove a lock file between its creation and its locking. The writer notices this and takes another
  name. Once the file is locked, nobody else removes it.
- If two processes clean up at once, one locks after the other, and the second finds that the file has gone.
- Names are random and never used twice, so a process cannot remove another one's files by mistake.

Publishing also works on a file system without locks, but there the leftovers of killed processes stay. If machines do
not share locks, one may remove what another is writing: then the other one fails, and the output stays whole.

`xlruntime` and `xltraining` have identical copies of this file, because neither imports the other.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["create", "file", "folder", "move_into_place", "remove_remains", "try_lock"]

AT_FDCWD = -100
RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2  # Linux, renameat2(2)
TRIES = 100  # a try fails only if another writer has published, or has removed a lock file
LEAVE_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # and do not wait for the other end of a pipe


@dataclass(frozen=True)
class _Temporary:
    """The names of one attempt at `output`; `aside` briefly holds the old folder."""

    output: Path
    token: str

    @property
    def path(self) -> Path:
        return self.output.with_name(f".{self.output.name}.xlexport-{self.token}")

    @property
    def lock(self) -> Path:
        return self.path.with_name(f"{self.path.name}.lock")

    @property
    def aside(self) -> Path:
        return self.path.with_name(f"{self.path.name}.old")

    def remove(self) -> None:
        """Remove all files, the lock file last; restore the old folder if the output is missing."""
        with contextlib.suppress(OSError):
            if self.aside.is_dir() and not os.path.lexists(self.output):
                self.aside.rename(self.output)
        for path in (self.path, self.aside):
            shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            for path in (self.path, self.aside):
                path.unlink(missing_ok=True)
            self.lock.unlink(missing_ok=True)


@contextlib.contextmanager
def file(output: Path, check: Callable[[], None] = lambda: None) -> Iterator[Path]:
    """Yield an empty file to write, which replaces `output` if the block succeeds and vanishes if it fails.

    Args:
        check: raises if `output` must not be replaced; runs after the block, as others may have published meanwhile.

    Raises:
        OSError: the file cannot be written; an older one stays as it was. Names `output`, never the temporary.
        IsADirectoryError, FileExistsError: `output` is not a file; nothing was written.
    """
    _require_file(output)
    with _naming(output), _claimed(output) as (temporary, mode):
        os.close(create(temporary.path))
        yield temporary.path
        _settle(temporary.path, mode)
        _publish(temporary, check)


@contextlib.contextmanager
def folder(output: Path, check: Callable[[], None] = lambda: None) -> Iterator[Path]:
    """Yield an empty folder to fill with files, which replaces `output` if the block succeeds and vanishes if it fails.

    An old folder stays in place until the new one is complete, then the two change places in one step.

    Args:
        check: as in `file`.

    Raises:
        OSError: as in `file`.
    """
    with _naming(output, of_calls=False), _claimed(output) as (temporary, mode):
        temporary.path.mkdir()
        yield temporary.path
        for path in temporary.path.iterdir():
            _settle(path, mode)
        _sync(temporary.path)
        _publish(temporary, check)


def create(path: Path) -> int:
    """Create a file, and return its descriptor, open for reading and writing.

    Raises:
        FileExistsError: the path exists already, even if only as a link.
    """
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | LEAVE_LINKS, 0o666)  # less the umask


def move_into_place(complete: Path, output: Path, check: Callable[[], None] = lambda: None) -> None:
    """Move a complete file, already on the disk, to `output` in one step.

    Args:
        check: raises if `output` must not be replaced. A file that appears after it has passed is not replaced either.
    """
    for _ in range(TRIES):
        there = os.path.lexists(output)  # before `check`: a later file has not been checked
        _require_file(output)
        check()
        try:
            if there:
                os.replace(complete, output)
            else:
                _move_to_free_place(complete, output)
            break
        except FileExistsError as error:  # it appeared just now
            failed = error
    else:
        raise failed
    _sync_parent(output)


def _require_file(output: Path) -> None:
    """Raise unless the output is a file or a link, or does not exist."""
    try:
        mode = output.lstat().st_mode
    except OSError:  # nothing is there; or writing fails, and says why
        return
    if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
        number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EEXIST
        raise OSError(number, "exists and is not a file, so it is never replaced", str(output))


def remove_remains(output: Path) -> None:
    """Remove the leftovers of killed processes at `output`, and put back an old folder that one had set aside."""
    ours = re.compile(re.escape(f".{output.name}.xlexport-") + r"([0-9a-f]{16})(?:\.lock|\.old)?")
    try:
        with os.scandir(output.parent) as entries:
            tokens = {found[1] for entry in entries if (found := ours.fullmatch(entry.name))}
    except OSError:  # a folder that can be written, but not listed
        return
    for token in sorted(tokens):
        remains = _Temporary(output, token)
        try:
            descriptor = os.open(remains.lock, os.O_RDWR | LEAVE_LINKS)
        except FileNotFoundError:
            remains.remove()
            continue
        except OSError:  # another user's
            continue
        try:
            if try_lock(descriptor) and _is_at(remains.lock, descriptor):
                remains.remove()
        finally:
            os.close(descriptor)


def try_lock(descriptor: int) -> bool | None:
    """Lock an open file until it is closed; return False if another has locked it, None without locks."""
    try:
        import fcntl
    except ImportError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


@contextlib.contextmanager
def _claimed(output: Path) -> Iterator[tuple[_Temporary, int]]:
    """Yield unused names and the mode of new files; remove all files of these names at the end."""
    remove_remains(output)
    for _ in range(TRIES):
        temporary = _Temporary(output, secrets.token_hex(8))
        descriptor = create(temporary.lock)
        try:
            if try_lock(descriptor) is False or not _is_at(temporary.lock, descriptor):
                continue  # another process cleaned up first
            try:
                # The system has applied the umask to this mode. To read the umask is to change it, for all threads.
                yield temporary, stat.S_IMODE(os.fstat(descriptor).st_mode)
            finally:
                temporary.remove()
            return
        finally:
            os.close(descriptor)
    raise OSError(errno.EAGAIN, "others keep removing the lock file", str(output))


def _is_at(path: Path, descriptor: int) -> bool:
    """Return whether an open file is still a file at `path`."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and os.path.samestat(status, os.fstat(descriptor))


def _publish(temporary: _Temporary, check: Callable[[], None]) -> None:
    """Move the complete temporary to the output, even if others publish there meanwhile."""
    if not temporary.path.is_dir():
        move_into_place(temporary.path, temporary.output, check)
        return
    for _ in range(TRIES):
        there = os.path.lexists(temporary.output)  # as in `move_into_place`
        check()
        try:
            if there:
                _exchange(temporary)
            else:
                _move_to_free_place(temporary.path, temporary.output)
            break
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOENT):
                raise
            failed = error  # the output appeared or vanished just now
    else:
        raise failed
    _sync_parent(temporary.output)


def _move_to_free_place(new: Path, output: Path) -> None:
    """Rename to a free path. A system without `renameat2` may replace a file that appeared after `check`."""
    if not _renameat2(new, output, RENAME_NOREPLACE):
        new.rename(output)


def _exchange(temporary: _Temporary) -> None:
    """Exchange two folders, if the system can in one step, so that the output is never missing."""
    new, old, aside = temporary.path, temporary.output, temporary.aside
    if _renameat2(new, old, RENAME_EXCHANGE):
        return
    shutil.rmtree(aside, ignore_errors=True)  # left by an earlier try; the output is newer
    old.rename(aside)
    try:
        new.rename(old)
    except OSError:
        with contextlib.suppress(OSError):  # keep what another writer has just published
            aside.rename(old)
        raise


def _renameat2(source: Path, target: Path, flags: int) -> bool:
    """Rename with Linux's `renameat2`; return False if the system lacks it.

    Raises:
        FileExistsError, FileNotFoundError: the system has it, but the target is in the way, or a path is missing.
    """
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):  # not Linux, or a C library without it
        return False
    if rename(AT_FDCWD, os.fsencode(source), AT_FDCWD, os.fsencode(target), flags) == 0:
        return True
    if (number := ctypes.get_errno()) in (errno.EEXIST, errno.ENOENT):
        raise OSError(number, os.strerror(number), str(target))
    return False  # the fallback reports the error, if there is one


def _settle(path: Path, mode: int) -> None:
    """Write a file to the disk with the mode of new files: some libraries write for the owner only."""
    if stat.S_IMODE(path.lstat().st_mode) != mode:
        path.chmod(mode)
    _sync(path)


def _sync_parent(output: Path) -> None:
    with contextlib.suppress(OSError):  # the output is complete; a power cut could at most restore the old one
        _sync(output.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _naming(output: Path, of_calls: bool = True) -> Iterator[None]:
    """Replace hidden names in errors by `output`, the only name that the user gave.

    Args:
        of_calls: also replace missing names, as in errors of writing to an open file.
    """
    hidden = str(output.with_name(f".{output.name}.xlexport-"))
    try:
        yield
    except OSError as error:
        name = str(error.filename or "")
        is_hidden = name.startswith(hidden) and os.sep not in name[len(hidden) :]
        if error.errno is None or not (is_hidden or (of_calls and not name)):
            raise
        raise OSError(error.errno, error.strerror, str(output)) from error
