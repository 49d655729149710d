"""The owner of a role directory: the `instance` file, the lock held for life, and the mark of a directory given up.

    instance    JSON: format version, uuid, seqno (it only grows), time of creation, data directories
    lock        flock, exclusive, held until the process ends; its content is the holder's pid
    FAILED      mark: nothing in this directory is trusted; a sync failed here, or it is an old copy of itself

A marked directory is never used again. If peers can fill the role again, the next start renames it to <name>.set-aside,
and the role starts with a new uuid. At most one set-aside directory may exist: a role that fails twice stays down.

A directory is formatted only when it is absent or empty. A directory with contents and no readable `instance` is
Damaged: to treat it as new would forget promises. Everything here blocks; LmdbDisk calls it beside the loop. A fork
would pass the lock on to the child, so the owner of a directory never forks, except to execute another program at once
(lmdb/stream.py), which closes the lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import threading
from collections.abc import Collection, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TypeVar

import msgspec

from ebla.storage.environment import QUARANTINE, Instance, SetAside
from ebla.storage.errors import Damaged, DirectoryLocked, DiskFailed, OldCopy

FORMAT = 2  # 2: the roots of data.mdb files have seals
INSTANCE, LOCK, FAILED = "instance", "lock", "FAILED"
SET_ASIDE = ".set-aside"
PID_CHARACTERS = 10
BESIDE, REMOVED = ".new", ".removed"  # suffixes of half made and half removed entries


F = TypeVar("F", bound=msgspec.Struct)


class Format(msgspec.Struct, frozen=True):
    """The field that a file of every version has."""

    format: int


class InstanceFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A version that adds a field raises FORMAT: an older one would drop the field. `lost`: the data directories in which a sync failed, with the error. `set_aside`: the directory that this replaced."""

    format: int
    uuid: str
    seqno: int
    created: str
    data_dirs: tuple[str, ...] = ()
    lost: dict[str, str] = {}
    set_aside: SetAside | None = None


class FailedFile(msgspec.Struct, frozen=True):
    reason: str
    at: str
    old_copy: bool = False


class InstanceDirectory:
    """One role directory, with the further `data_dirs` that have its data. A data directory is

    formatted    when it is configured for the first time: it gets the instance's uuid
    lost         if it is known and is absent, empty, unreadable, or a sync failed in it
    replaced     if it was lost, is empty now, and no tablet links to it: it is formatted again
    forgotten    when it is no longer configured, and no tablet links to it
    """

    def __init__(self, root: Path, data_dirs: Sequence[Path] = (), *, sets_aside: bool = False) -> None:
        self.root = root
        self.data_dirs = tuple(data_dirs)
        self.sets_aside = sets_aside
        self.lost: dict[Path, str] = {}  # directory -> reason
        self._lock: int | None = None
        self._file: InstanceFile | None = None
        self._writing = threading.Lock()  # guards the instance file

    def open(self, new_uuid: str) -> Instance:
        """Lock, format if there is nothing at all, clear half done entries, count this incarnation."""
        assert self._lock is None, "open it once"
        make_directory(self.root)
        self._acquire()
        try:
            self._leave_given_up()
            held = self._read(self.root)
            if held is None:
                held = self._fresh(new_uuid)
                self._write(held)  # before anything else has its uuid
            file = self._join_data_dirs(held)
            for directory in map(Path, file.data_dirs):
                if directory not in self.lost:
                    self._clear_data_dir(directory)
            clear_leftovers(self.root, self.lost)
            clear_empty(self.root / QUARANTINE)
            self._file = file
            self.raise_seqno(1)
        except BaseException:
            self.close()
            raise
        return Instance(self._file.uuid, self._file.seqno, created=held.seqno == 0)

    def raise_seqno(self, by: int) -> int:
        assert self._file is not None, "open it first"
        if not self.holds():
            raise Damaged(
                f"{self.root} is no longer the directory that this server has locked; move a directory only while "
                "its server is down",
                path=str(self.root),
            )
        with self._writing:
            self._write(msgspec.structs.replace(self._file, seqno=self._file.seqno + by))
            return self._file.seqno

    def lose(self, directory: Path, reason: str) -> None:
        """Record a failed sync of a data directory, there and in the instance file. Raises OSError if both fail."""
        assert self._file is not None, "open it first"
        marked = False
        with contextlib.suppress(OSError):
            _mark(directory, reason, old_copy=False)
            marked = True
        try:
            with self._writing:
                if self.holds():
                    lost = self._file.lost | {str(directory): reason}
                    self._write(msgspec.structs.replace(self._file, lost=lost))
        except OSError:
            if not marked:
                raise
        self.lost[directory] = reason

    def set_aside(self) -> SetAside | None:
        found = self._file.set_aside if self._file else None
        return found if found is not None and os.path.lexists(found.path) else None

    def known_data_dirs(self) -> list[Path]:
        assert self._file is not None, "open it first"
        return list(map(Path, self._file.data_dirs))

    def _write(self, file: InstanceFile) -> None:
        write_durably(self.root / INSTANCE, msgspec.json.encode(file))
        self._file = file

    def holds(self) -> bool:
        """Whether the directory of this name is the locked one, and not another in its place."""
        if self._lock is None:
            return False
        try:
            return os.path.samestat(os.fstat(self._lock), os.stat(self.root / LOCK))
        except FileNotFoundError:
            return False

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def mark_failed(self, reason: str) -> None:
        """Write the mark if the failing disk permits it; an OSError is ignored."""
        with contextlib.suppress(OSError):
            _mark(self.root, reason, old_copy=False)

    def give_up(self, reason: str) -> bool:
        """Mark an old copy. Return False if another incarnation holds the directory."""
        if not self.holds():
            return False
        _mark(self.root, reason, old_copy=True)
        return True

    def _acquire(self) -> None:
        path = self.root / LOCK
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(lock)
            raise DirectoryLocked(
                f"{self.root} is held by process {holder}; wait until it has ended, never run two",
                path=str(self.root),
            ) from None
        self._lock = lock
        if not self.holds():
            self.close()
            raise DirectoryLocked(f"{self.root} was set aside meanwhile; start again", path=str(self.root))
        pid = f"{os.getpid():<{PID_CHARACTERS}}\n"  # of fixed length, so that it needs no new block
        os.pwrite(lock, pid.encode(), 0)

    def _leave_given_up(self) -> None:
        """Set a marked directory aside and lock a new one, or raise OldCopy or DiskFailed."""
        marker = _marked(self.root)
        if marker is None:
            return
        aside = beside(self.root, SET_ASIDE)
        if not self.sets_aside:
            remedy = "move the directory aside and start again: the server comes back as a new one and is filled from its peers"
        elif os.path.lexists(aside):
            remedy = f"and because an earlier one is still in {aside}, move both away and start again"
        else:
            try:
                self._set_aside(aside)
                return
            except OSError as error:
                remedy = f"and because it cannot be set aside ({error}), move it away and start again"
        if marker.old_copy:
            why = f": {remedy}" if self.sets_aside else ""
            raise OldCopy(f"{marker.reason} ({self.root} was given up{why})", path=str(self.root))
        raise DiskFailed(
            f"{self.root} was given up: {marker.reason}. Check the device, {remedy}", path=str(self.root)
        )

    def _set_aside(self, aside: Path) -> None:
        os.rename(self.root, aside)  # with its lock; a new lock belongs to the first process that makes it
        sync_path(self.root.parent)
        self.close()
        make_directory(self.root)
        self._acquire()

    def _found_aside(self) -> tuple[SetAside, dict[str, str]] | None:
        """The directory that the new one replaces, and the data directories that had failed it."""
        aside = beside(self.root, SET_ASIDE)
        if not self.sets_aside or not aside.is_dir():
            return None
        marker = _marked(aside)
        try:
            before = self._read(aside)
        except Damaged:
            before = None
        found = SetAside(str(aside), marker.reason if marker else "", before.uuid if before else "")
        return found, before.lost if before else {}

    def _read(self, directory: Path) -> InstanceFile | None:
        """Read the instance file. None only if the directory never had contents."""
        path = directory / INSTANCE
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            kept = sorted(set(os.listdir(directory)) - {LOCK, INSTANCE + BESIDE, "lost+found"})
            if kept:
                raise Damaged(
                    f"{directory} has contents ({', '.join(kept[:5])}) and no {INSTANCE} file; restore it, or "
                    "move the directory aside to come back as a new server",
                    path=str(path),
                ) from None
            return None
        try:
            return decode_of_format(data, InstanceFile, FORMAT, str(path))
        except msgspec.MsgspecError as error:
            raise Damaged(
                f"{path} is unreadable ({error}); if another version of ebla wrote it, use that one; else restore it, or move "
                "the directory aside to come back as a new server",
                path=str(path),
            ) from error

    def _fresh(self, new_uuid: str) -> InstanceFile:
        set_aside, lost = self._found_aside() or (None, {})
        now = datetime.now(timezone.utc).isoformat()
        return InstanceFile(FORMAT, new_uuid, 0, now, lost=lost, set_aside=set_aside)

    def _join_data_dirs(self, file: InstanceFile) -> InstanceFile:
        known = dict.fromkeys((*map(Path, file.data_dirs), *self.data_dirs))
        kept = [directory for directory in known if directory in self.data_dirs or self._leads_to(directory)]
        for directory in kept:
            why = self._why_lost(directory, file)
            if why is not None:
                self.lost[directory] = why
        marked = {str(path): why for path, why in self.lost.items() if str(path) in file.lost}
        return msgspec.structs.replace(file, data_dirs=tuple(map(str, kept)), lost=marked)

    def _why_lost(self, directory: Path, file: InstanceFile) -> str | None:
        """Why a known directory is lost; None if it is usable or was formatted. Problems of an unknown one are raised."""
        known = str(directory) in file.data_dirs
        try:
            found = self._read(directory) if directory.is_dir() else None
            marker = _marked(directory) if found else None
            if found is None and not (known and self._leads_to(directory)):
                _format_data_dir(directory, file)
                return None
        except (OSError, Damaged) as error:
            if not known:
                raise
            return str(error)
        if found is None:
            return "it is empty or not there; mount it"
        failed = file.lost.get(str(directory)) or (marker.reason if marker else None)
        if found.uuid == file.uuid or failed:
            return failed
        if file.set_aside is not None and found.uuid == file.set_aside.uuid:
            return _set_aside_data_dir(directory, file)
        raise Damaged(
            f"{directory} does not hold the data of {file.uuid}, it belongs to {found.uuid}; mount the right disk",
            path=str(directory),
        )

    def _leads_to(self, directory: Path) -> bool:
        """Whether a tablet links to it, even if the disk is lost."""
        places = self.root / "data"
        links = [entry.path for entry in os.scandir(places) if entry.is_symlink()] if places.is_dir() else []
        return any(Path(os.readlink(link)).is_relative_to(directory) for link in links)

    def _clear_data_dir(self, directory: Path) -> None:
        try:
            clear_leftovers(directory)
            clear_empty(directory / QUARANTINE)
        except OSError as error:
            self.lost[directory] = str(error)


def _format_data_dir(directory: Path, file: InstanceFile) -> None:
    make_directory(directory)
    write_durably(directory / INSTANCE, msgspec.json.encode(file))


def _set_aside_data_dir(directory: Path, file: InstanceFile) -> str | None:
    """Set aside the data of the role's earlier directory, then format. Return why that is impossible, or None."""
    aside = beside(directory, SET_ASIDE)
    if os.path.lexists(aside):
        return (
            f"it holds data from before the server was set aside, and {aside} is in the way; move both away"
        )
    try:
        os.rename(directory, aside)
        sync_path(directory.parent)
        _format_data_dir(directory, file)
    except OSError as error:
        return f"it holds data from before the server was set aside, and cannot be set aside: {error}"
    return None


def _mark(directory: Path, reason: str, *, old_copy: bool) -> None:
    marker = FailedFile(reason, datetime.now(timezone.utc).isoformat(), old_copy)
    write_durably(directory / FAILED, msgspec.json.encode(marker))


def _marked(directory: Path) -> FailedFile | None:
    path = directory / FAILED
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=FailedFile)
    except (msgspec.MsgspecError, OSError):
        return FailedFile("a sync failed", "")


# -- files that survive a power cut --------------------------------------------------------------------------


def decode_of_format(data: bytes, kind: type[F], number: int, path: str) -> F:
    """Decode a JSON file. Raises Damaged if its format has another number, whatever else it has; MsgspecError if it is unreadable."""
    found = msgspec.json.decode(data, type=Format).format
    if found != number:
        raise Damaged(
            f"{path} has format {found}, this version of ebla reads {number}; use the version that wrote it, and leave the file "
            "where it is",
            path=path,
        )
    return msgspec.json.decode(data, type=kind)


def beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def sync_path(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_directory(path: Path) -> None:
    """Make a directory and its missing parents, each with a durable entry in its parent."""
    if not path.is_dir():
        make_directory(path.parent)
        with contextlib.suppress(FileExistsError):
            path.mkdir()
        sync_path(path.parent)


def write_durably(path: Path, data: bytes) -> None:
    """Replace the file. After a power cut it has its old content or the new one, never a mixture."""
    made = beside(path, BESIDE)
    with open(made, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.rename(made, path)
    sync_path(path.parent)


def remove_tree(path: Path, lost: Collection[Path] = ()) -> None:
    """Delete a directory, or a link and its target, unless the target is on a lost disk."""
    if path.is_symlink():
        target = Path(os.readlink(path))
        if not any(map(target.is_relative_to, lost)) and target.exists():
            shutil.rmtree(target)
            sync_path(target.parent)
        path.unlink()
    elif path.is_dir():
        shutil.rmtree(path)
    elif path.exists():
        path.unlink()
    sync_path(path.parent)


def clear_leftovers(directory: Path, lost: Collection[Path] = ()) -> None:
    """Remove half made and half removed entries. The target of a half made link stays: it may be older than the link."""
    for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
        if entry.name.endswith(BESIDE) and entry.is_symlink():
            os.unlink(entry.path)
        elif entry.name.endswith((BESIDE, REMOVED)):
            remove_tree(Path(entry.path), lost)
        elif entry.is_dir(follow_symlinks=False):
            clear_leftovers(Path(entry.path), lost)


def clear_empty(directory: Path) -> None:
    """Remove the empty directories directly in `directory`."""
    for entry in os.scandir(directory) if directory.is_dir() else ():
        if entry.is_dir(follow_symlinks=False) and not os.listdir(entry.path):
            os.rmdir(entry.path)
