"""Unix sockets that listen: their files, who may connect, and when a file is taken over or removed.

Rules
  1. A file that is there is taken over only if it is a socket on which nobody listens: connecting to it is refused.
     Whoever else starts at the same moment waits for nothing and is told so: the folder is locked meanwhile (flock).
  2. Owner and mode are set before the socket listens. Until then connecting is refused, so nobody slips in.
  3. The mode is 0660 unless the listener says otherwise: to connect is to write. Who else may is for the operator to
     say; a socket that all programs of a machine may connect to is not made by default.
  4. The file is removed when the address is not listened on any more, if it is still the one that was made here. That
     is looked at while the socket is open: its inode cannot be another file's by then.
  5. A socket that systemd has opened is used as it is, and its file stays.
"""

from __future__ import annotations

import errno
import fcntl
import grp
import os
import pwd
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from activator.runtime.errors import StartError
from activator.runtime.unix_address import UNIX, path_of, problem_with

UNIX_SOCKET_MODE: Final = 0o660
UNIX_ADMIN_MODE: Final = 0o600

_ATTEMPTS: Final = 3  # at a file that comes and goes between two looks


class SocketAccess(NamedTuple):
    """Who may connect. `owner`, `group`: a name or a number; empty: as the process has it."""

    mode: int = UNIX_SOCKET_MODE
    owner: str = ""
    group: str = ""


class _File(NamedTuple):
    device: int
    inode: int


_made: dict[str, _File] = {}  # paths of sockets that this process has made, and whose files it removes


def bind_unix(address: str, access: SocketAccess, backlog: int) -> socket.socket:
    """A listening socket on `unix:/path`. Raises StartError with what to do."""
    problem = problem_with(address)
    if problem:
        raise StartError(f"cannot listen on {address}: {problem}")
    path = path_of(address)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _locked(os.path.dirname(path)):
            _bind(sock, path)
            _made[path] = _file_at(path)
            try:
                set_access(address, access)
                sock.setblocking(False)
                sock.listen(backlog)
            except BaseException:
                _remove(path)
                raise
    except StartError as error:
        sock.close()
        raise StartError(f"cannot listen on {address}: {error}") from error
    except OSError as error:
        sock.close()
        raise StartError(f"cannot listen on {address}: {_words_of(error, path)}") from error
    return sock


def set_access(address: str, access: SocketAccess) -> None:
    """Of a socket that this process has made; of any other nothing is changed. Raises StartError."""
    path = path_of(address)
    if path not in _made:
        return
    try:
        owner, group = _number_of_user(access.owner), _number_of_group(access.group)
        with _opened(path) as file:
            if owner >= 0 or group >= 0:
                os.chown(file, owner, group)
            os.chmod(file, access.mode)  # behind `chown`, which may clear bits
    except OSError as error:
        what = f"owner {access.owner or 'unchanged'}, group {access.group or 'unchanged'}, mode {access.mode:04o}"
        hint = "; only root can give a file to others" if error.errno == errno.EPERM else ""
        raise StartError(f"its {what} cannot be set: {os.strerror(error.errno or 0)}{hint}") from error


def remove_file(address: str) -> None:
    """The address is about to be listened on no more; its sockets are still open."""
    if address.startswith(UNIX):
        _remove(path_of(address))


def remove_all_files() -> None:
    """At the end of the program, however it ends."""
    for path in list(_made):
        _remove(path)


def _remove(path: str) -> None:
    made = _made.pop(path, None)
    if made is not None:
        try:
            if _file_at(path) == made:
                os.unlink(path)
        except OSError:
            pass  # somebody was faster, or the folder has gone: it is not there, or it is not ours to remove


def _bind(sock: socket.socket, path: str) -> None:
    """Raises OSError or StartError."""
    for _ in range(_ATTEMPTS):
        try:
            sock.bind(path)
            return
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        take_over(path)
    raise StartError("its file comes and goes; stop the other program or choose another path")


def take_over(path: str) -> None:
    """Remove the file of a socket that nobody listens on; raises OSError or StartError where it is none."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise StartError("there is a file of that name, and it is no socket; remove it or choose another path")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            found = probe.connect_ex(path)
        if found == errno.ECONNREFUSED:
            os.unlink(path)
        elif found == errno.EPROTOTYPE:
            raise StartError("there is a socket of another type; remove it or choose another path")
        elif found in {errno.EACCES, errno.EPERM}:
            raise StartError("there is a socket that we may not connect to; remove it or choose another path")
        elif found != errno.ENOENT:  # taken, or its queue is full (EAGAIN)
            raise StartError("another program listens on it; stop that program or choose another path")
    except FileNotFoundError:
        pass  # removed meanwhile


@contextmanager
def _opened(path: str) -> Iterator[str]:
    """A name of the socket's file that stays its own: whoever may write in the folder could put a link in its place."""
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            raise StartError("another file has been put in its place")
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


@contextmanager
def _locked(folder: str) -> Iterator[None]:
    """Of those that start with a socket in one folder, one at a time. Raises OSError or StartError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StartError("another program takes an address in its folder at this moment; try again") from None
        yield
    finally:
        os.close(descriptor)


def _file_at(path: str) -> _File:
    found = os.lstat(path)
    return _File(found.st_dev, found.st_ino)


def _number_of_user(name: str) -> int:
    if not name:
        return -1
    try:
        return int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid
    except KeyError:
        raise StartError(f"there is no user {name} here; correct `owner`") from None


def _number_of_group(name: str) -> int:
    if not name:
        return -1
    try:
        return int(name) if name.isdecimal() else grp.getgrnam(name).gr_gid
    except KeyError:
        raise StartError(f"there is no group {name} here; correct `group`") from None


def _words_of(error: OSError, path: str) -> str:
    if error.errno == errno.ENOENT:
        return f"there is no directory {os.path.dirname(path)}; create it"
    return os.strerror(error.errno or 0)
