"""Publish a file or a folder whole or not at all, even if writing fails, is killed, or others write the same output.

The block of a caller fills a hidden temporary in the folder of the output, `.NAME.xlexport-` with 16 random digits. It
is synchronized and then takes the place of the output in one step. A link at the output is replaced itself; what it
leads to stays. Modes are the ones that the umask leaves.

Who lives is known by a lock, because process numbers mean nothing in another container or on another machine:

- A writer makes the lock file of its temporary first, and locks it. It removes this file last. So a temporary without a
  lock file, or with one that nobody has locked, is of a process that was killed; the next writer removes both.
- A writer may find that the file it has locked is no longer there: somebody has removed it between these two steps. It
  then takes another name. Nobody else can remove it once it is locked.
- Two that clean up at once lock one after another, and the second finds that the file is no longer there.
- Names are random and never used twice, so nothing that is removed can be of anybody else.

A file system without locks works, too, but there nobody removes what killed processes have left. If locks are not
shared between machines, one may remove what another is writing: then that one fails, and the output stays whole.

This file is in `xlruntime` and in `xltraining`, which import nothing of each other; the two are the same.
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
TRIES = 100  # after each failed one somebody else has published, or has removed a lock file
LEAVE_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # nor wait for the other end of a pipe


@dataclass(frozen=True)
class _Temporary:
    """The names of one attempt at `output`; `aside` is an old folder, for a moment."""

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
        """Remove all of it, the lock file last; an old folder comes back if nothing else is there."""
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
        check: raises if `output` must not be replaced; called after the block, as others may have published meanwhile.

    Raises:
        OSError: it cannot be written; an older one stays as it was. Names `output`, never the temporary.
    """
    with _naming(output), _claimed(output) as (temporary, mode):
        os.close(create(temporary.path))
        yield temporary.path
        _settle(temporary.path, mode)
        _publish(temporary, check)


@contextlib.contextmanager
def folder(output: Path, check: Callable[[], None] = lambda: None) -> Iterator[Path]:
    """Yield an empty folder to fill with files, which replaces `output` if the block succeeds and vanishes if it fails.

    An old folder stays in place until the new one is complete, then the two change places at once.

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
    """Return the descriptor of a new file that is open for reading and writing.

    Raises:
        FileExistsError: something is there already, if only a link.
    """
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | LEAVE_LINKS, 0o666)  # less the umask


def move_into_place(complete: Path, output: Path, check: Callable[[], None] = lambda: None) -> None:
    """Let a complete file, which is on the disk already, become `output` in one step.

    Args:
        check: raises if `output` must not be replaced. A file that appears after it has passed is not replaced either.
    """
    for _ in range(TRIES):
        there = os.path.lexists(output)  # looked at first: what appears after it has not been checked
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


def remove_remains(output: Path) -> None:
    """Remove what killed processes left of attempts at `output`; put back an old folder that one had set aside."""
    ours = re.compile(re.escape(f".{output.name}.xlexport-") + r"([0-9a-f]{16})(?:\.lock|\.old)?")
    try:
        with os.scandir(output.parent) as entries:
            tokens = {found[1] for entry in entries if (found := ours.fullmatch(entry.name))}
    except OSError:  # a folder that may be written, but not listed
        return
    for token in sorted(tokens):
        remains = _Temporary(output, token)
        try:
            descriptor = os.open(remains.lock, os.O_RDWR | LEAVE_LINKS)
        except FileNotFoundError:
            remains.remove()
            continue
        except OSError:  # somebody else's
            continue
        try:
            if try_lock(descriptor) and _is_at(remains.lock, descriptor):
                remains.remove()
        finally:
            os.close(descriptor)


def try_lock(descriptor: int) -> bool | None:
    """Lock an open file until it is closed; return False if another has locked it, None if there are no locks."""
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
    """Yield names that nobody else uses, and the mode of new files; nothing of them is left in the end."""
    remove_remains(output)
    for _ in range(TRIES):
        temporary = _Temporary(output, secrets.token_hex(8))
        descriptor = create(temporary.lock)
        try:
            if try_lock(descriptor) is False or not _is_at(temporary.lock, descriptor):
                continue  # somebody who cleans up was quicker
            try:
                # The system has applied the umask. Asking for it would mean to change it, for all threads.
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
    """Let what is complete take the place of the output, whatever others publish there meanwhile."""
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
    """Rename, and replace nothing: surely if the system can; else not what was there when `check` looked."""
    if not _renameat2(new, output, RENAME_NOREPLACE):
        new.rename(output)


def _exchange(temporary: _Temporary) -> None:
    """Let two folders change places: in one step if the system can, so that the output is never missing."""
    new, old, aside = temporary.path, temporary.output, temporary.aside
    if _renameat2(new, old, RENAME_EXCHANGE):
        return
    shutil.rmtree(aside, ignore_errors=True)  # of an attempt before this one: there is a newer one by now
    old.rename(aside)
    try:
        new.rename(old)
    except OSError:
        with contextlib.suppress(OSError):  # what somebody else has just published stays
            aside.rename(old)
        raise


def _renameat2(source: Path, target: Path, flags: int) -> bool:
    """Rename as only Linux can; return False if that is not possible here.

    Raises:
        FileExistsError, FileNotFoundError: it is possible, but something is in the way, or is missing.
    """
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):  # not Linux, or a C library without it
        return False
    if rename(AT_FDCWD, os.fsencode(source), AT_FDCWD, os.fsencode(target), flags) == 0:
        return True
    if (number := ctypes.get_errno()) in (errno.EEXIST, errno.ENOENT):
        raise OSError(number, os.strerror(number), str(target))
    return False  # the other way says what is wrong, if anything is


def _settle(path: Path, mode: int) -> None:
    """Give a file the mode of new files, as some libraries write for the owner only; and have it on the disk."""
    if stat.S_IMODE(path.lstat().st_mode) != mode:
        path.chmod(mode)
    _sync(path)


def _sync_parent(output: Path) -> None:
    with contextlib.suppress(OSError):  # the output is complete: a power cut might only bring the old one back
        _sync(output.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _naming(output: Path, of_calls: bool = True) -> Iterator[None]:
    """Let errors about hidden names name `output`, as the user never gave the other names.

    Args:
        of_calls: also errors that name nothing, such as those of writing to an open file.
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
