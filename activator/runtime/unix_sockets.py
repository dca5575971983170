"""Listening Unix sockets: their files and permissions, and the takeover and removal of files.

Rules
  1. An existing file is taken over only if it is a socket on which no program listens, so that connecting to it is
     refused. The folder is locked (flock) in the meantime; a program that starts at the same time fails with an error.
  2. Owner and mode are set before the socket listens. Until then connections are refused, so no one can connect early.
  3. The mode is 0660 unless the listener sets another one (connecting requires write permission), so that by default
     not every program on the machine may connect.
  4. The file is removed when the listener closes, if it is still the one that was made here. This is checked while the
     socket is open, because until then its inode cannot be reused for another file.
  5. A socket that systemd has opened is used unchanged, and its file is kept.
"""

from __future__ import annotations

import errno
import fcntl
import grp
import os
import pwd
import socket
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from activator.runtime.errors import StartError
from activator.runtime.unix_address import UNIX, is_unix, path_of, problem_with

UNIX_SOCKET_MODE: Final = 0o660
UNIX_ADMIN_MODE: Final = 0o600

_ATTEMPTS: Final = 3  # if a file appears or disappears between two checks


class SocketAccess(NamedTuple):
    """The permissions of a socket. `owner` and `group` are names or numbers; empty: those of the process."""

    mode: int = UNIX_SOCKET_MODE
    owner: str = ""
    group: str = ""


class _File(NamedTuple):
    device: int
    inode: int


_made: dict[str, _File] = {}  # by path, the socket files that this process has made and will remove


def bind_unix(address: str, access: SocketAccess, backlog: int) -> socket.socket:
    """Return a listening socket on `unix:/path`. Raises StartError, whose text states what to do."""
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
    """Set the permissions of a Unix socket that this process has made; others are not changed. Raises StartError."""
    path = path_of(address)
    if not is_unix(address) or path not in _made:
        return
    try:
        owner, group = _number_of_user(access.owner), _number_of_group(access.group)
        with _opened(path) as file:
            if owner >= 0 or group >= 0:
                os.chown(file, owner, group)
            os.chmod(file, access.mode)  # after `chown`, which may clear bits
    except OSError as error:
        rights = f"owner {access.owner or 'unchanged'}, group {access.group or 'unchanged'}, mode {access.mode:04o}"
        hint = "; only root can give a file to others" if error.errno == errno.EPERM else ""
        raise StartError(f"its {rights} cannot be set: {os.strerror(error.errno or 0)}{hint}") from error


def made_paths() -> list[str]:
    """Return the paths of the files that this process has made and will remove."""
    return list(_made)


def take_files(paths: Iterable[str]) -> None:
    """Remove these files at the end, as if this process had made them: a former process of the activator leaves them.

    The sockets must be open here.
    """
    for path in paths:
        try:
            _made[path] = _file_at(path)
        except OSError:
            continue  # it was removed


def leave_files() -> None:
    """Leave all files to a later process of the activator."""
    _made.clear()


def remove_file(address: str) -> None:
    """Remove the file of an address whose listener is about to close; its sockets must still be open."""
    if address.startswith(UNIX):
        _remove(path_of(address))


def remove_all_files() -> None:
    """Remove all files; called at the end of the program, however it ends."""
    for path in list(_made):
        _remove(path)


def _remove(path: str) -> None:
    """Remove a file that this process has made, unless another one has replaced it."""
    made = _made.pop(path, None)
    if made is not None:
        try:
            if _file_at(path) == made:
                os.unlink(path)
        except OSError:
            pass  # the file was already removed, or may not be removed


def _bind(sock: socket.socket, path: str) -> None:
    """Bind the socket, and take over an unused file. Raises OSError or StartError."""
    for _ in range(_ATTEMPTS):
        try:
            sock.bind(path)
            return
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        take_over(path)
    raise StartError("its file is repeatedly created and removed; stop the other program or choose another path")


def take_over(path: str) -> None:
    """Remove the file of a socket on which no program listens. Raises OSError or StartError for any other file."""
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
        pass  # removed by another program


@contextmanager
def _opened(path: str) -> Iterator[str]:
    """Yield a path that always refers to the socket's file, even if it is replaced, for example by a symbolic link."""
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            raise StartError("another file has been put in its place")
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


@contextmanager
def _locked(folder: str) -> Iterator[None]:
    """Lock the folder against other programs that start with a socket in it. Raises OSError or StartError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StartError("another program is binding an address in its folder; try again") from None
        yield
    finally:
        os.close(descriptor)


def _file_at(path: str) -> _File:
    found = os.lstat(path)
    return _File(found.st_dev, found.st_ino)


def _number_of_user(name: str) -> int:
    """Return the number of a user, -1 for an empty name. Raises StartError."""
    if not name:
        return -1
    try:
        return int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid
    except KeyError:
        raise StartError(f"there is no user {name} here; correct `owner`") from None


def _number_of_group(name: str) -> int:
    """Return the number of a group, -1 for an empty name. Raises StartError."""
    if not name:
        return -1
    try:
        return int(name) if name.isdecimal() else grp.getgrnam(name).gr_gid
    except KeyError:
        raise StartError(f"there is no group {name} here; correct `group`") from None


def _words_of(error: OSError, path: str) -> str:
    """Return why a socket could not be bound at `path`, and what to do."""
    if error.errno == errno.ENOENT:
        return f"there is no directory {os.path.dirname(path)}; create it"
    return os.strerror(error.errno or 0)
