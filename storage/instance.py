"""Who owns a role directory: the `instance` file, the lock held for life, and the marker of one that was given up.

    instance    JSON: format version, uuid, seqno (it only grows), when and for which data directories
    lock        flock, exclusive, held until the process ends; its content is the holder's pid
    FAILED      nothing in this directory is believed any more: a sync failed here, or it is an old copy of itself

A directory is formatted only when it is absent or empty. One that has contents and no readable `instance` is
Damaged: taking it for new would forget promises. Everything here blocks; LmdbDisk calls it beside the loop.
A process that forks hands the lock on to its child, so the owner of a directory never forks.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from ebla.storage.environment import QUARANTINE, Instance
from ebla.storage.errors import Damaged, DirectoryLocked, DiskFailed, OldCopy

FORMAT = 2  # 2: the roots of data.mdb files have seals
INSTANCE, LOCK, FAILED = "instance", "lock", "FAILED"
BESIDE, REMOVED = ".new", ".removed"  # suffixes of what is half made and half removed


class InstanceFile(msgspec.Struct, frozen=True):
    format: int
    uuid: str
    seqno: int
    created: str
    data_dirs: tuple[str, ...] = ()


class FailedFile(msgspec.Struct, frozen=True):
    reason: str
    at: str
    old_copy: bool = False


class InstanceDirectory:
    """One role directory, with the further `data_dirs` that it spreads its data over."""

    def __init__(self, root: Path, data_dirs: Sequence[Path] = ()) -> None:
        self.root = root
        self.data_dirs = tuple(data_dirs)
        self._lock: int | None = None
        self._file: InstanceFile | None = None

    def open(self, new_uuid: str) -> Instance:
        """Lock, format if there is nothing at all, clear what was left half done, count this incarnation."""
        assert self._lock is None, "open it once"
        make_directory(self.root)
        self._acquire()
        try:
            self._refuse_given_up()
            held = self._read(self.root)
            file = held or self._fresh(new_uuid)
            file = self._join_data_dirs(file)
            for directory in (self.root, *self.data_dirs):
                clear_leftovers(directory)
                clear_empty(directory / QUARANTINE)
            self._file = file
            self.raise_seqno(1)
        except BaseException:
            self.close()
            raise
        return Instance(self._file.uuid, self._file.seqno, held is None)

    def raise_seqno(self, by: int) -> int:
        assert self._file is not None, "open it first"
        if not self.holds():
            raise Damaged(
                f"{self.root} is no longer the directory that this server has locked; move a directory only while "
                "its server is down",
                path=str(self.root),
            )
        raised = msgspec.structs.replace(self._file, seqno=self._file.seqno + by)
        write_durably(self.root / INSTANCE, msgspec.json.encode(raised))
        self._file = raised
        return raised.seqno

    def holds(self) -> bool:
        """Whether the directory of this name is the one that was locked, and not another in its place."""
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
        """As durable as a failing disk allows: what cannot be written is not worth another error."""
        with contextlib.suppress(OSError):
            self._mark(reason, old_copy=False)

    def give_up(self, reason: str) -> bool:
        """False if the directory is another's by now."""
        if not self.holds():
            return False
        self._mark(reason, old_copy=True)
        return True

    def _mark(self, reason: str, *, old_copy: bool) -> None:
        marker = FailedFile(reason, datetime.now(UTC).isoformat(), old_copy)
        write_durably(self.root / FAILED, msgspec.json.encode(marker))

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
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        self._lock = lock

    def _refuse_given_up(self) -> None:
        path = self.root / FAILED
        if not path.exists():
            return
        try:
            marker = msgspec.json.decode(path.read_bytes(), type=FailedFile)
        except (msgspec.MsgspecError, OSError):
            marker = FailedFile("a sync failed", "")
        if marker.old_copy:
            raise OldCopy(f"{marker.reason} ({self.root} was given up)", path=str(self.root))
        raise DiskFailed(
            f"{self.root} was given up: {marker.reason}. Check the device, move the directory aside and start again: "
            "the server comes back as a new one and is filled from its peers",
            path=str(self.root),
        )

    def _read(self, directory: Path) -> InstanceFile | None:
        """None only where nothing was ever kept."""
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
            file = msgspec.json.decode(data, type=InstanceFile)
        except msgspec.MsgspecError as error:
            raise Damaged(
                f"{path} is unreadable ({error}); restore it, or move the directory aside to come back as a "
                "new server",
                path=str(path),
            ) from error
        if file.format != FORMAT:
            raise Damaged(
                f"{path} has format {file.format}, this version reads {FORMAT}; use the version that wrote it",
                path=str(path),
            )
        return file

    def _fresh(self, new_uuid: str) -> InstanceFile:
        return InstanceFile(FORMAT, new_uuid, 0, datetime.now(UTC).isoformat())

    def _join_data_dirs(self, file: InstanceFile) -> InstanceFile:
        """A data directory is formatted when it is first named. One that we know and find without our mark is
        not mounted, or lost: Damaged, never new."""
        for directory in self.data_dirs:
            make_directory(directory)
            found = self._read(directory)
            if found is None and str(directory) not in file.data_dirs:
                write_durably(directory / INSTANCE, msgspec.json.encode(file))
            elif found is None or found.uuid != file.uuid:
                raise Damaged(
                    f"{directory} does not hold the data of {file.uuid} "
                    f"({'it is empty' if found is None else f'it belongs to {found.uuid}'}); mount the right disk",
                    path=str(directory),
                )
        known = tuple(dict.fromkeys((*file.data_dirs, *map(str, self.data_dirs))))
        return msgspec.structs.replace(file, data_dirs=known)


# -- files that survive a power cut --------------------------------------------------------------------------


def sync_path(path: Path) -> None:
    """fsync a file or a directory."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_directory(path: Path) -> None:
    """Make a directory and its missing parents, each durably named in its parent."""
    if not path.is_dir():
        make_directory(path.parent)
        with contextlib.suppress(FileExistsError):
            path.mkdir()
        sync_path(path.parent)


def write_durably(path: Path, data: bytes) -> None:
    """Replace the file: its old content or the new one, never a mixture, whenever the power goes."""
    beside = path.with_name(path.name + BESIDE)
    with open(beside, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.rename(beside, path)
    sync_path(path.parent)


def remove_tree(path: Path) -> None:
    """Delete a directory, or a link and the directory it points at."""
    if path.is_symlink():
        target = path.resolve()
        if target.exists():
            shutil.rmtree(target)
            sync_path(target.parent)
        path.unlink()
    elif path.is_dir():
        shutil.rmtree(path)
    elif path.exists():
        path.unlink()
    sync_path(path.parent)


def clear_leftovers(directory: Path) -> None:
    """Undo what was half made, finish what was half removed. Where a half made link leads to stays: that may have been
    there before it."""
    for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
        if entry.name.endswith(BESIDE) and entry.is_symlink():
            os.unlink(entry.path)
        elif entry.name.endswith((BESIDE, REMOVED)):
            remove_tree(Path(entry.path))
        elif entry.is_dir(follow_symlinks=False):
            clear_leftovers(Path(entry.path))


def clear_empty(directory: Path) -> None:
    """Remove the empty directories in it."""
    for entry in os.scandir(directory) if directory.is_dir() else ():
        if entry.is_dir(follow_symlinks=False) and not os.listdir(entry.path):
            os.rmdir(entry.path)
