"""The users of a file, and of `keys_file`: their keys are checked, and read once for all workers."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from activator.config.forms import FILE
from activator.config.key_path import Findings, KeyPath
from activator.config.model.file import Config
from activator.config.model.keys import NO_KEY, SHA256, Key, KeyLimits
from activator.config.model.kinds import Secret
from activator.config.model_entries import revision_names
from activator.config.rates import parse_rate
from activator.config.reader import UNREADABLE, Reader
from activator.config.specs import NO_LEVEL, QuotaSpec, UserSpec, key_of
from activator.config.tree import Item, read_tree
from activator.runtime.errors import ConfigError, StartError
from activator.runtime.secret_text import read_secret
from activator.runtime.units import MIB

KEYS_MAX: Final = 1_000  # each has a time series
KEYS_FILE_BYTES_MAX: Final = MIB
KEY_CHARACTERS_MIN: Final = 8  # shorter ones can be guessed

_NO_RATE: Final = (0, 1.0)
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._@-]{0,61}[A-Za-z0-9])?")
_HASH: Final = re.compile(r"[0-9a-fA-F]{64}")


def users_of(keys: Iterable[Key]) -> tuple[UserSpec, ...]:
    """Read the keys, and return their users, once for each of their keys. Raises StartError."""
    return tuple([
        UserSpec(
            key.name,
            digest,
            None if key.revisions is None else tuple([key_of(name) for name in key.revisions]),
            NO_LEVEL if key.priority is None else key.priority,
            _quota_of(key.limits),
            weight=key.weight,
        )
        for key in keys
        for digest in _digests_of(key)
    ])  # fmt: skip


def disciplines_of(config: Config) -> frozenset[str]:
    """Return the disciplines of queues that need no header with the keys of a file."""
    keys = config.keys
    if config.keys_file or any(key.priority is not None for key in keys):
        return frozenset({"fair", "priority"})
    return frozenset({"fair"}) if keys else frozenset()


def shared_users(before: tuple[UserSpec, ...], after: tuple[UserSpec, ...]) -> tuple[UserSpec, ...]:
    """Return the users after a reload with the rights that their keys have both before and after it."""
    known = {user.digest: user.revisions for user in before}
    return tuple([
        msgspec.structs.replace(user, revisions=_shared(known.get(user.digest, ()), user.revisions)) for user in after
    ])  # fmt: skip


def _shared(first: tuple[str, ...] | None, second: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Return the revisions that both name; None stands for all revisions."""
    if first is None or second is None:
        return second if first is None else first
    return tuple([key for key in first if key in second])


def users_in(config: Config) -> tuple[UserSpec, ...]:
    """Return the users of `keys` and `keys_file`. Raises ConfigError or StartError."""
    return users_of([*config.keys, *read_keys_file(config)])


def read_keys_file(config: Config) -> list[Key]:
    """Return the users in `keys_file`, if it is set. Raises ConfigError.

    An empty list is a mistake: no key would be valid.
    """
    path = config.keys_file
    if not path:
        return []
    problems: list[str] = []
    root = read_tree(_text_of(path), path, {}, problems)
    keys: Any = UNREADABLE
    if root is not None and root.entries == {}:
        problem = "it names no user, so that no key is valid"
        problems.append(f"{root.where}: keys_file: {problem}: add `- {{name: alice, key: ...}}`, or delete `keys_file`")
    elif root is not None:
        findings = Findings(Item(root.where, entries={"keys_file": root}), problems)
        keys = Reader(findings).read(root, FILE.keys["keys"].form, ("keys_file",))
        if keys is not UNREADABLE:
            root_at = KeyPath(findings)
            if not keys and not problems:
                root_at["keys_file"].found("at least one user")
            checked = _UserChecks(known_revisions(config), revision_names(config.models))
            checked.seed(config.keys)
            checked.check(root_at["keys_file"], keys)
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    assert keys is not UNREADABLE
    return list(keys)


def _text_of(path: str) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(KEYS_FILE_BYTES_MAX + 1)
        if len(data) > KEYS_FILE_BYTES_MAX:
            raise ConfigError([f"{path}: it is larger than {KEYS_FILE_BYTES_MAX // MIB} MiB"])
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError([f"{path}: it is not UTF-8"]) from None
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError([f"{path}: cannot be read: {reason}"]) from None


def known_revisions(config: Config) -> frozenset[str] | None:
    """Return all revisions that there can be, as namespace/name; None if other sources may have more."""
    if config.kubernetes is not None or config.containers.discover:
        return None
    return frozenset([f"{revision.namespace}/{revision.name}" for revision in config.revisions])


def check_keys(root: KeyPath, config: Config) -> None:
    """Check all keys of a file."""
    if "keys" in root and not config.keys and not config.keys_file:
        root["keys"].advise("it is empty: delete `keys` to let everybody in, or name a user with a key")
    is_readable = "revisions" in root and root["revisions"].is_whole
    names = revision_names(config.models)
    _UserChecks(known_revisions(config) if is_readable else None, names).check(root["keys"], config.keys)


class _UserChecks:
    """The checks of lists of users, which together have each name and each of their keys once."""

    def __init__(self, known: frozenset[str] | None, model_revisions: dict[str, str]) -> None:
        self._known = known
        self._model_revisions = model_revisions
        self._names: dict[str, str] = {}  # name of a user → the path of its entry
        self._digests: dict[bytes, str] = {}
        self._count = 0

    def seed(self, keys: Sequence[Key]) -> None:
        """Note users that have been checked before."""
        self._count = sum(len(secrets_of(key)) for key in keys)
        for number, key in enumerate(keys):
            self._names.setdefault(key.name, f"keys[{number}]")
            try:
                for digest in _digests_of(key):
                    self._digests.setdefault(digest, f"keys[{number}]")
            except StartError:  # its file or variable has just been removed
                continue

    def check(self, at: KeyPath, keys: Sequence[Key]) -> None:
        """Check a list of users."""
        self._count += sum(len(secrets_of(key)) for key in keys)
        if self._count > KEYS_MAX:
            at.found(f"at most {KEYS_MAX} keys", str(self._count))
            return
        for entry_at, key in at.each(keys):
            self._check_key(entry_at, key)

    def _check_key(self, at: KeyPath, key: Key) -> None:
        if _NAME.fullmatch(key.name) is None:
            at["name"].found("a name of at most 63 letters, digits, `-`, `_`, `.` and `@`")
        elif key.name in self._names:
            at["name"].advise(f"{self._names[key.name]} has this name, too: for several keys of a user use `more_keys`")
        self._names.setdefault(key.name, str(at))
        try:
            digests = _digests_of(key)
        except StartError as error:
            at["key"].advise(str(error).removeprefix(f"key {key.name}: "))
        else:
            for digest in digests:
                self._claim(at, digest)
        if key.limits is not None:
            _check_limits(at["limits"], key.limits)
        for entry_at, name in at["revisions"].each(key.revisions or []):
            self._check_revision(entry_at, name)

    def _claim(self, at: KeyPath, digest: bytes) -> None:
        """Note a key of a user, which no other may have."""
        other = self._digests.get(digest)
        if other is None:
            self._digests[digest] = str(at)
        elif not digest:
            at.advise(f"{other} is for requests without a key, too: remove one of the two")
        elif other == str(at):
            at.advise("it has the same key twice: remove one of the two")
        else:
            at.advise(f"{other} has the same key: requests could not be told apart, so change or remove one of the two")

    def _check_revision(self, at: KeyPath, name: str) -> None:
        if self._known is None or key_of(name) in self._known:
            return
        own_name = self._model_revisions.get(name)
        if own_name is not None:
            at.advise(f'the revision of this model is "{own_name}": write that')
        else:
            at.found("the name of a revision of this file, as `name` or `namespace/name`")


def _check_limits(at: KeyPath, limits: KeyLimits) -> None:
    for name, rate in (("requests", limits.requests), ("tokens", limits.tokens)):
        if rate is not None and parse_rate(rate) is None:
            at[name].found("a number per period, such as 60/min, 10/s or 1M/day")
    if limits.tokens is None and "response_tokens" in at:
        advice = "`response_tokens` has no effect without `tokens`: set it, or remove this"
        at["response_tokens"].advise(advice, beside=(at["tokens"],))
    elif limits.concurrency is None and limits.requests is None and limits.tokens is None and at.is_whole:
        at.advise("it needs at least one of `concurrency`, `requests` and `tokens`")


def _quota_of(limits: KeyLimits | None) -> QuotaSpec | None:
    """Return the quota of a user. The rates have been checked."""
    if limits is None:
        return None
    requests = parse_rate(limits.requests or "") or _NO_RATE
    tokens = parse_rate(limits.tokens or "") or _NO_RATE
    return QuotaSpec(limits.concurrency or 0, *requests, *tokens, limits.response_tokens)


def secrets_of(key: Key) -> list[Secret]:
    """Return all keys of a user."""
    return [key.key, *key.more_keys]


def _digests_of(key: Key) -> list[bytes]:
    """Return the SHA-256 of each key of a user; empty for requests without a key. Raises StartError."""
    return [_digest_of(key.name, secret) for secret in secrets_of(key)]


def _digest_of(name: str, secret: Secret) -> bytes:
    """Return the SHA-256 of a key, which may itself be given as a hash. Raises StartError."""
    if secret == NO_KEY:
        return b""
    label = f"key {name}"
    text = read_secret(str(secret), label)
    if text.startswith(SHA256):
        digest = text.removeprefix(SHA256)
        if _HASH.fullmatch(digest) is None:
            raise StartError(
                f"{label}: after `sha256:`, 64 hex digits are required, as `printf %s KEY | sha256sum` prints them"
            )
        return bytes.fromhex(digest)
    if len(text) < KEY_CHARACTERS_MIN or not text.isascii() or not text.isprintable() or " " in text:
        raise StartError(
            f"{label}: a key has at least {KEY_CHARACTERS_MIN} ASCII characters without spaces: `openssl rand -hex 16`"
        )
    return hashlib.sha256(text.encode()).digest()
