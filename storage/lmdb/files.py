"""The files of LMDB environments: made, opened, listed and removed so that no power cut leaves half of one.

An environment gets its name after it was committed and synced with an identity record. One that is missing, truncated,
unreadable or of another instance is therefore Damaged, never new. Everything here blocks.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import lmdb
import msgspec

from ebla.storage.directories.instance import (
    BESIDE,
    FORMAT,
    REMOVED,
    beside,
    clear_empty,
    make_directory,
    remove_tree,
    sync_path,
)
from ebla.storage.environment import QUARANTINE
from ebla.storage.errors import Damaged, DataDiskFailed, DiskFailed, DiskFull, InvalidArgument, StorageError
from ebla.storage.lmdb import structure
from ebla.storage.lmdb.commit import for_want_of_space
from ebla.storage.lmdb.data_dirs import DataDisks
from ebla.storage.lmdb.identity import IDENTITY_DATABASE, IDENTITY_KEY, Identity, identity_of
from ebla.storage.lmdb.pages import lists_from_the_system
from ebla.storage.lmdb.reads import DAMAGE, SPARE_READS, Database, code_of
from ebla.storage.lmdb.roots import Roots
from ebla.storage.space import LOW_BYTES, extend

DATA_FILE, LOCK_FILE = "data.mdb", "lock.mdb"
READERS_MAX = 510
LOCK_BYTES = 64 * (READERS_MAX + 2)  # LMDB: a cache line for each reader, and a shared header
DATABASES_MAX = 32
RESERVED_MAX = 8  # databases of ebla itself, now and in later versions
ROOM_BYTES = 1 << 20  # for the one record that is changed in a received environment


class EnvironmentFiles:
    """The environments of one role directory; `uuid` is its instance's."""

    def __init__(self, root: Path, disks: DataDisks, uuid: str) -> None:
        self.root = root
        self.disks = disks
        self.uuid = uuid
        self.free_bytes: dict[str, int] = {}  # of data directories, as last measured
        self._unfinished: dict[str, Path] = {}  # removed environments that still have files, and their disks
        self._turns: dict[Path, threading.Lock] = {}  # held while such files are deleted, by disk

    def open(
        self, path: str, databases: Sequence[str], *, create: bool, map_bytes: int
    ) -> tuple[lmdb.Environment, dict[str, Database], Roots]:
        if len(databases) > DATABASES_MAX - RESERVED_MAX:
            raise InvalidArgument(
                f"{path} may have {DATABASES_MAX - RESERVED_MAX} databases, not {len(databases)}"
            )
        if not os.path.lexists(self.root / path):
            if not create:
                raise Damaged(f"environment {path} must exist and does not; restore it", path=path)
            try:
                self._create(path, databases, map_bytes)
            except (lmdb.Error, OSError) as error:
                raise create_error(path, self.root, error) from error
        disk = self.disks.of(self.root / path)
        if disk is not None:
            disk.check()
        try:
            return self._open(path, databases, map_bytes)
        except (lmdb.Error, OSError, msgspec.MsgspecError) as error:
            if for_want_of_space(code_of(error), self.root / path):
                raise DiskFull(f"no space left to open {path}: {error}; free space", path=path) from error
            problem = f"environment {path} is unreadable: {error}; rebuild it from a peer"
            raise Damaged(problem, path=path) from error

    def exists(self, path: str) -> bool:
        return _is_environment(self.root / path)

    def directories(self, path: str) -> list[str]:
        directory = self.root / path
        inside = os.listdir(directory) if directory.is_dir() else []
        return sorted(name for name in inside if self.list(f"{path}/{name}"))

    def list(self, path: str) -> list[str]:
        directory = self.root / path
        if not directory.is_dir():
            return []
        return sorted(name for name in os.listdir(directory) if _is_environment(directory / name))

    def remove(self, path: str) -> None:
        self._finish_removal(path)
        place = self.root / path
        if os.path.lexists(place):
            away, home = beside(place, REMOVED), self._home(place)
            os.rename(place, away)
            try:
                sync_path(place.parent)
                self._remove_tree(away)
            except OSError:
                self._unfinished[path] = home
                raise
        if path.startswith(f"{QUARANTINE}/"):
            for directory in (self.root, *self.disks.there()):
                with suppress(DataDiskFailed), self.disks.touching(directory / QUARANTINE):
                    clear_empty(directory / QUARANTINE)

    def retry_removals(self, directory: Path) -> None:
        """Try again to delete the files of one removed environment on this disk, which a full disk has prevented."""
        for path, home in list(self._unfinished.items()):
            if home == directory:
                self._finish_removal(path)
                return

    def _finish_removal(self, path: str) -> None:
        home = self._unfinished.get(path)
        if home is None:
            return
        with self._turns.setdefault(home, threading.Lock()):
            if self._unfinished.get(path) != home:
                return  # finished meanwhile, and perhaps removed again on another disk
            away = beside(self.root / path, REMOVED)
            if os.path.lexists(away):
                self._remove_tree(away)
            elif away.parent.is_dir():
                sync_path(away.parent)  # the last step of the removal
            del self._unfinished[path]

    def _home(self, place: Path) -> Path:
        disk = self.disks.of(place)
        return self.root if disk is None else disk.path

    def move(self, path: str, to: str) -> None:
        place, moved = self.root / path, self.root / to
        if os.path.lexists(moved) and os.path.lexists(place) and not _is_half_moved(place, moved, to):
            raise StorageError(f"{path} and {to} are both there; purge one of them", path=path)
        if place.is_symlink():
            self._move_target(place, moved, to)
        elif place.exists():
            _rename(place, moved)
        elif not os.path.lexists(moved):
            raise Damaged(f"environment {path} must exist and does not; restore it", path=path)
        for each in (moved.parent, place.parent):  # also after a move, which may have been interrupted here
            if each.is_dir():
                sync_path(each)

    def size_bytes(self, path: str) -> int:
        return sum(map(directory_bytes, _behind_links(self.root / path)))

    def _remove_tree(self, place: Path) -> None:
        """Remove a tree, or a link. Files on a disk that is lost, or fails now, stay."""
        with suppress(DataDiskFailed), self.disks.touching(place) as there:
            if there:
                remove_tree(place)
        if os.path.lexists(place):
            place.unlink()
            sync_path(place.parent)

    def _move_target(self, place: Path, moved: Path, to: str) -> None:
        """Move the data first, then make the new link, then remove the old: it leads to its own data or to nothing."""
        target, target_moved = _targets(place, to)
        with suppress(DataDiskFailed), self.disks.touching(place) as there:
            if there and target.exists():
                _rename(target, target_moved)
            for each in (target_moved.parent, target.parent):
                if there and each.is_dir():
                    sync_path(each)
        make_directory(moved.parent)
        _link(moved, target_moved)
        place.unlink()

    def begin(self, path: str) -> Path:
        """Make the empty directory in which a new environment is built."""
        self._finish_removal(path)  # the new environment may get the same place on a data disk
        place = self.root / path
        target = self.target_place(path) / path
        make_directory(place.parent)
        with self.disks.touching(target):
            make_directory(target.parent)
            if target != place and target.exists():
                remove_tree(target)  # no link leads there: half made, or removed while the disk was lost
            made = beside(target, BESIDE)
            if os.path.lexists(made):
                remove_tree(made)
            made.mkdir()
        return made

    def finish(self, path: str, made: Path) -> None:
        """Seal a committed environment and give it its name."""
        place, target = self.root / path, made.with_name(made.name.removesuffix(BESIDE))
        with self.disks.touching(target):
            with closing(Roots(made / DATA_FILE, path)) as roots:
                roots.seal_new()
            sync_path(made / DATA_FILE)
            sync_path(made)
            _name(made, target)
        if target != place:
            _link(place, target)

    def _create(self, path: str, databases: Sequence[str], map_bytes: int) -> None:
        made = self.begin(path)
        with self.disks.touching(made):
            opened = map_environment(made, map_bytes, synced=False)  # `finish` syncs it before the rename
            try:
                with opened.begin(write=True) as transaction:
                    identity = opened.open_db(IDENTITY_DATABASE, txn=transaction)
                    for name in databases:
                        opened.open_db(name.encode(), txn=transaction)
                    record = Identity(FORMAT, self.uuid, path, tuple(databases))
                    transaction.put(IDENTITY_KEY, msgspec.json.encode(record), db=identity)
            finally:
                opened.close()
        self.finish(path, made)

    def adopt(self, path: str, made: Path, databases: Sequence[str]) -> None:
        """Make a received environment one of this instance, synced. Raises Damaged unless it is complete and had this path."""
        with self.disks.touching(made):
            try:
                self._adopt_identity(path, made, databases)
            except (*DAMAGE, msgspec.MsgspecError) as error:
                raise Damaged(f"environment {path} arrived unreadable: {error}", path=path) from error

    def _adopt_identity(self, path: str, made: Path, databases: Sequence[str]) -> None:
        opened = map_environment(made, (made / DATA_FILE).stat().st_size + ROOM_BYTES)
        try:
            found = identity_of(opened, path)
            if found.path != path or not set(databases) <= set(found.databases):
                raise Damaged(f"{found.path} with {', '.join(found.databases)} arrived as {path}", path=path)
            identity = opened.open_db(IDENTITY_DATABASE, create=False)
            with opened.begin(write=True) as transaction:
                ours = msgspec.structs.replace(found, instance=self.uuid)
                transaction.put(IDENTITY_KEY, msgspec.json.encode(ours), db=identity)
        finally:
            opened.close()

    def _open(
        self, path: str, databases: Sequence[str], map_bytes: int
    ) -> tuple[lmdb.Environment, dict[str, Database], Roots]:
        place = self.root / path
        data = place / DATA_FILE
        if not data.is_file() or data.stat().st_size == 0:
            raise Damaged(f"environment {path} has lost its {DATA_FILE}; rebuild it from a peer", path=path)
        with ExitStack() as undo:
            roots = Roots(data, path)
            undo.callback(roots.close)
            unsealed = roots.check()  # before LMDB trusts them
            if data.stat().st_size <= structure.BYTES_MAX:
                structure.check(data.read_bytes(), path)
            opened = map_environment(place, max(map_bytes, data.stat().st_size))
            undo.callback(opened.close)
            identity = self._identify(opened, path, data)
            if unsealed is not None:
                roots.seal(unsealed)
            opened.reader_check()
            handles = _databases(opened, identity, databases, roots)
            undo.pop_all()
        return opened, handles, roots

    def _identify(self, opened: lmdb.Environment, path: str, data: Path) -> Identity:
        """Read the identity, after making sure that every page exists: reading beyond the end of the file is a SIGBUS."""
        _make_whole(data, opened.info()["last_pgno"] + 1, opened.stat()["psize"])
        found = identity_of(opened, path)
        named_so = found.path == path or path.startswith(f"{QUARANTINE}/")
        if found.instance != self.uuid or not named_so:
            raise Damaged(
                f"environment {path} is {found.path} of instance {found.instance}, not of {self.uuid}; "
                "put it back where it belongs",
                path=path,
            )
        return found

    def place(self, path: str) -> Path:
        """The data directory of an environment, or the role's directory."""
        return self._home(self.root / path)

    def target_place(self, path: str) -> Path:
        """As `place`, also for an environment that does not exist yet."""
        spread = self.disks.any and path.startswith("data/") and not os.path.lexists(self.root / path)
        return self._roomiest() if spread else self.place(path)

    def _roomiest(self) -> Path:
        """The data directory for a new environment: one with space, then with the fewest environments. Only the role's own
        disk is read."""
        held: dict[Path, int] = {}
        with suppress(FileNotFoundError):
            for entry in os.scandir(self.root / "data"):
                if entry.is_symlink():
                    place = Path(os.readlink(entry.path)).parent.parent
                    held[place] = held.get(place, 0) + 1

        def preference(place: Path) -> tuple[bool, int]:
            return self.free_bytes.get(str(place), LOW_BYTES) < LOW_BYTES, held.get(place, 0)

        return min(self.disks.sound(), key=preference)


def _make_whole(data: Path, pages: int, page_bytes: int) -> None:
    """Make the file as long as LMDB expects. A sound file may be shorter (its last pages were used and freed within one
    commit, or a write to a full disk was cut short). In a truncated file missing pages then read as zeros, which LMDB
    reports as corrupted. A partial page counts as missing."""
    size = data.stat().st_size
    if size < pages * page_bytes:
        os.truncate(data, size - size % page_bytes)
        os.truncate(data, pages * page_bytes)


def _databases(
    opened: lmdb.Environment, identity: Identity, wanted: Sequence[str], roots: Roots
) -> dict[str, Database]:
    """Open the wanted databases. Those that the identity names must exist: one hidden by rot is not made again."""
    known = {name: opened.open_db(name.encode(), create=False) for name in identity.databases}
    added = [name for name in wanted if name not in known]
    if added:
        with opened.begin(write=True) as transaction:
            made = {name: opened.open_db(name.encode(), txn=transaction) for name in added}
            named = msgspec.structs.replace(identity, databases=(*identity.databases, *added))
            database = opened.open_db(IDENTITY_DATABASE, txn=transaction, create=False)
            transaction.put(IDENTITY_KEY, msgspec.json.encode(named), db=database)
            number = transaction.id()
        roots.seal(number)
        known |= made
    return {name: known[name] for name in wanted}


def map_environment(directory: Path, map_bytes: int, *, synced: bool = True) -> lmdb.Environment:
    """Open with full syncs, unless `synced` is False: at a power cut `nosync` may break the tree, and `nometasync` loses the
    last commit. LMDB writes only its lock file through a map."""
    extend(directory / LOCK_FILE, LOCK_BYTES)
    with lists_from_the_system():
        return lmdb.open(
            str(directory),
            map_size=map_bytes,
            subdir=True,
            meminit=False,
            max_dbs=DATABASES_MAX,
            max_readers=READERS_MAX,
            max_spare_txns=SPARE_READS,
            sync=synced,
        )


def create_error(path: str, place: Path, error: Exception) -> StorageError:
    if for_want_of_space(code_of(error), place):
        return DiskFull(f"no space left to make {path}: {error}; nothing was changed: free space", path=path)
    return DiskFailed(f"cannot make environment {path}: {error}", path=path)


def _is_environment(place: Path) -> bool:
    """Whether `place` is an environment, even without its files; not a directory that only contains environments."""
    if place.name.endswith((BESIDE, REMOVED)):
        return False
    if place.is_symlink():
        return True
    return place.is_dir() and not any(entry.is_dir() or entry.is_symlink() for entry in os.scandir(place))


def _is_half_moved(place: Path, moved: Path, to: str) -> bool:
    """Whether both names exist because a move was interrupted: the old link then leads to nothing."""
    if not (place.is_symlink() and moved.is_symlink()) or place.exists():
        return False
    return Path(os.readlink(moved)) == _targets(place, to)[1]


def _targets(place: Path, to: str) -> tuple[Path, Path]:
    """The target of a link, <data dir>/data/<name>, and the path of `to` in the same data directory."""
    target = Path(os.readlink(place))
    return target, target.parent.parent / to


def _rename(place: Path, moved: Path) -> None:
    make_directory(moved.parent)
    try:
        os.rename(place, moved)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        raise StorageError(
            f"{place} and {moved} are on two file systems; give tablets another one with data_dirs, not a mount",
            path=str(place),
        ) from error


def _link(place: Path, target: Path) -> None:
    made = beside(place, BESIDE)
    if os.path.lexists(made):
        made.unlink()
    made.symlink_to(target)
    _name(made, place)


def _name(made: Path, place: Path) -> None:
    """Give a finished entry its name durably. If the sync fails (a full disk), take the name back: the next attempt would
    take the entry for a durable one."""
    os.rename(made, place)
    try:
        sync_path(place.parent)
    except OSError:
        os.rename(place, made)
        raise


def _behind_links(place: Path) -> list[Path]:
    """The place and the targets of links in it, or the target of the place."""
    if place.is_symlink():
        return [Path(os.readlink(place))]
    inside = [Path(entry.path) for entry in os.scandir(place)] if place.is_dir() else []
    return [place, *(Path(os.readlink(each)) for each in inside if each.is_symlink())]


def directory_bytes(directory: Path) -> int:
    """Bytes on disk of the files under `directory`, without links and what is behind them."""
    total, waiting = 0, [str(directory)]
    while waiting:
        try:
            entries = list(os.scandir(waiting.pop()))
        except OSError:
            continue  # removed meanwhile, or on a failing disk, which other calls find
        for entry in entries:
            with contextlib.suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif not entry.is_symlink():
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total
