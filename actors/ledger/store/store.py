"""The ledger store: keeps entries of ledgers, each in one LMDB item, and promises about ledgers.

    durable    entries and fences are synced before the answer; requests that arrive together share one commit
    fenced     an answer with a fence means: no entry of the writer is stored here afterwards
    certain    a store that lost its directory is another store (its uuid is new), and refuses requests for the old one
    read-only  with too little space the store takes no entries of writers, and goes on otherwise

Rules are in rules.py. Which entries the store should have is a matter of its clients: a replication worker sends a ledger's
metadata along, and this store copies from the others that it names.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from ebla.actors import messages as am
from ebla.actors.asking.ends import report_ends
from ebla.actors.errors import NotRunning, WrongServer
from ebla.actors.figures import Figure
from ebla.actors.ledger import messages as m
from ebla.actors.ledger.handles.options import LedgerOptions
from ebla.actors.ledger.handles.reading import Reader
from ebla.actors.ledger.handles.registry import StoreInfo
from ebla.actors.ledger.handles.stores import Stores
from ebla.actors.ledger.shared.kept import KeptRegistry
from ebla.actors.ledger.shared.presence import Presence
from ebla.actors.ledger.store import records, rules
from ebla.actors.ledger.store.arrivals import Arrivals
from ebla.actors.ledger.store.commits import Commits
from ebla.actors.ledger.store.confirmed import Confirmed
from ebla.actors.ledger.store.entries import Entries
from ebla.actors.ledger.store.forgotten import Forgotten
from ebla.actors.ledger.store.measures import Counted, measure_store
from ebla.actors.ledger.store.moving import Mover
from ebla.actors.ledger.store.options import LedgerStoreOptions
from ebla.actors.ledger.store.records import ENTRIES, HEADS, Head
from ebla.actors.ledger.store.visits import Visits
from ebla.actors.world import Role, World, new_id, rpc
from ebla.storage.environment import Change, DeleteRange, Environment, Put
from ebla.storage.errors import DiskFull, EblaError

log = logging.getLogger(__name__)

NO_ENTRY = -1


class LedgerStore(Role):
    def __init__(self, world: World, options: LedgerStoreOptions | None = None) -> None:
        self.world = world
        self.options = options or LedgerStoreOptions()
        self.options.validate()
        self.instance = am.ServerInstance("", 0, "")
        self.heads: dict[int, Head] = {}
        self.read_only = False
        self.free_bytes = 0
        self.counted = Counted()
        self._saved: dict[int, Head] = {}
        self._with_entries: set[int] = set()
        self._ends: dict[int, int] = {}  # no entry after this one has ever been here
        self._presence = Presence(world, self.options.masters, self._info)
        registry = KeptRegistry(world, self._presence.session)
        self._forgotten = Forgotten(registry, self.options.deleted_heads)
        self._reader = Reader(world, registry, Stores(world, registry), LedgerOptions())
        self._arrivals = Arrivals(self.options.direct_bytes)
        self._confirmed = Confirmed(world, lambda ledger: self.entries.lac(ledger))
        self._environment: Environment
        self._commits: Commits
        self._mover: Mover
        self.entries: Entries
        self._visits: Visits
        self._running = False

    # -- life ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        disk = self.world.disk
        instance = await disk.open_instance(new_id(self.world.random))
        formatted = disk.exists(records.FORMATTED)
        self._environment = await disk.open_environment(records.PATH, records.DATABASES, create=not formatted)
        self._commits = Commits(self.world, self._environment)
        self._mover = Mover(self.world, self.options, self._arrivals, self._commits, self._is_deleted)
        if not formatted:  # made last: without it nothing was ever acknowledged
            await disk.open_environment(records.FORMATTED, (records.HEADS,), create=True, map_bytes=1 << 20)
        self.heads = records.heads_of(self._environment)
        self._saved = dict(self.heads)
        self._forgotten.load(self._environment)
        self._arrivals.load(self._environment)
        self.entries = Entries(self._environment, self._arrivals)
        self._with_entries = {ledger for ledger in self.heads if self.entries.last(ledger) is not None}
        self.instance = am.ServerInstance(instance.uuid, instance.seqno, new_id(self.world.random))
        self._visits = Visits(self.instance.start)
        await self._look_at_space()
        self._running = True
        self.world.spawn(self._watch_space(), "watch free space")
        deleted = [ledger for ledger, head in self.heads.items() if head.deleted]
        self.world.spawn(self._delete_leftovers(deleted), "delete leftovers")
        self.world.spawn(self._presence.run(), "register")
        self.world.spawn(report_ends(self.world, self.options.masters), "ends of neighbours")
        self.world.spawn(self._mover.run(), "move arrivals")

    def _info(self) -> StoreInfo:
        return StoreInfo(self.instance.uuid, self.world.address, self.read_only)

    async def stop(self) -> None:
        """The store's session is left to expire: the masters may stop at the same time."""
        self._running = False
        self._confirmed.wake()

    def measure(self) -> Iterable[Figure]:
        self._require_running()
        return measure_store(self)

    def _require_running(self) -> None:
        if not self._running:
            raise NotRunning(f"{self.world.address} is starting or stopping", state="starting")

    def _require(self, store: str) -> None:
        self._require_running()
        if store != self.instance.uuid:
            raise WrongServer(
                f"the store at {self.world.address} is {self.instance.uuid}, not {store}, which has lost its directory",
                wanted=store,
                found=self.instance.uuid,
            )

    async def _require_there(self, request: m.AddRequest | m.ReadRequest | m.TailRequest) -> None:
        """Before a ledger gets a head. Raises LedgerFenced for a deleted one whose head was forgotten."""
        self._require(request.store)
        if request.ledger not in self.heads and request.ledger <= self._forgotten.greatest:
            await self._forgotten.require_there(request.ledger, request.token)
            self._require_running()

    async def _watch_space(self) -> None:
        while True:
            await self.world.clock.sleep(self.options.space_s)
            await self._look_at_space()

    async def _look_at_space(self) -> None:
        self.free_bytes = (await self.world.disk.space())[0].free_bytes
        self.read_only = self.free_bytes < self.options.low_bytes

    # -- writing ---------------------------------------------------------------------------------------------

    @rpc
    async def add_entries(self, request: m.AddRequest) -> m.Done:
        """Store the entries, synced, in one commit. Raises LedgerFenced, StoreReadOnly, WrongToken, WrongServer, DiskFull."""
        rules.require_sound(request)
        return await self._add(request)

    async def _add(self, request: m.AddRequest) -> m.Done:
        """The entries are sound."""
        await self._require_there(request)
        ledger = request.ledger
        head = rules.admit_add(self.heads.get(ledger), request, self.read_only)
        if request.recovery:
            self._visits.visit(ledger)
        self._require_equal(ledger, request.entries)
        changes, arriving = self._arrivals.put(ledger, request.entries)
        try:
            await self._save("recovery_add" if request.recovery else "add", ledger, head, changes)
        except EblaError:
            self._arrivals.failed(arriving)
            raise
        self._arrivals.arrived(arriving)
        self._with_entries.add(ledger)
        self._ends[ledger] = max(self._ends.get(ledger, NO_ENTRY), request.entries[-1].entry)
        if self._arrivals.bytes > self.options.arrivals_bytes_max:
            await self._mover.move(self._arrivals.next)
        self.counted.add(request.entries)
        self._confirmed.learn(ledger, request.entries[-1].lac)
        return m.Done(self._presence.leaving, self._confirmed.awaited(ledger))

    def _require_equal(self, ledger: int, given: Sequence[m.Entry]) -> None:
        end = self._ends.get(ledger)
        if end is None:
            last = self.entries.last(ledger)
            end = self._ends[ledger] = NO_ENTRY if last is None else last
        if given[0].entry > end:
            return
        for entry in given:
            value = self.entries.get(ledger, entry.entry)
            if value is not None:
                rules.require_equal(ledger, records.read_entry(ledger, entry.entry, value), entry)

    async def _save(self, what: str, ledger: int, head: Head, changes: Sequence[Change] = ()) -> None:
        """Make a head and changes durable. The head is in force in memory at once, so that a request that arrives meanwhile is
        judged by it; if the disk is full, it stays in force until the next start."""
        self.heads[ledger] = head
        batch = list(changes)
        if self._saved.get(ledger) != head:
            batch.append(Put(HEADS, [records.head_item(ledger, head)]))
        if not batch:
            return
        await self.world.faults.here(f"ledger.{what}.before_commit")
        await self._commits.commit(batch)
        saved = self._saved.get(ledger, head)
        self._saved[ledger] = Head(head.token, saved.fenced or head.fenced, saved.deleted or head.deleted)
        await self.world.faults.here(f"ledger.{what}.after_commit")

    def _is_deleted(self, ledger: int) -> bool:
        head = self.heads.get(ledger)
        return head is None or head.deleted

    async def _fence(self, ledger: int, head: Head) -> None:
        """Entries that were admitted before are committed before: commits keep their order."""
        await self._save("fence", ledger, rules.fenced(head))
        self._confirmed.wake(ledger)

    # -- reading ---------------------------------------------------------------------------------------------

    @rpc
    async def read_entries(self, request: m.ReadRequest) -> m.ReadReply:
        """Read entries, and which of them are absent for certain. Raises LedgerFenced for a deleted ledger."""
        self._require(request.store)
        if request.fence:
            await self._require_there(request)
        ledger = request.ledger
        head = rules.admit(self.heads.get(ledger), ledger, request.token)
        if request.fence:
            await self._fence(ledger, head)
        found: list[m.Entry] = []
        absent: list[int] = []
        damaged: list[int] = []
        total = 0
        bytes_max = min(request.bytes_max, self.options.answer_bytes)
        for number in request.entries:
            value = self.entries.get(ledger, number)
            if value is None:
                absent.append(number)
                continue
            total += len(value)
            if total > bytes_max and found:
                break
            entry = records.read_entry(ledger, number, value)
            if entry is None:
                damaged.append(number)
                log.error("%s: entry %d of ledger %d fails its checksum", self.world.address, number, ledger)
            else:
                found.append(entry)
        self.counted.read(found)
        return m.ReadReply(tuple(found), tuple(absent), tuple(damaged))

    @rpc
    async def check_entries(self, request: m.CheckRequest) -> m.CheckReply:
        """Look for entries; unless only keys are asked for, verify their checksums, as many as one answer may have bytes. Raises as
        `read_entries`."""
        self._require(request.store)
        ledger = request.ledger
        rules.admit(self.heads.get(ledger), ledger, request.token)
        self._visits.visit(ledger)
        if request.keys_only:
            return m.CheckReply(len(request.entries), tuple(self.entries.absent(ledger, request.entries)))
        absent: list[int] = []
        damaged: list[int] = []
        checked = total = 0
        for number in request.entries:
            value = self.entries.get(ledger, number)
            checked += 1
            if value is None:
                absent.append(number)
                continue
            if records.read_entry(ledger, number, value) is None:
                damaged.append(number)
                log.error("%s: entry %d of ledger %d fails its checksum", self.world.address, number, ledger)
            total += len(value)
            if total > self.options.answer_bytes:
                break
        return m.CheckReply(checked, tuple(absent), tuple(damaged))

    @rpc
    async def copy_entries(self, request: m.CopyRequest) -> m.CopyReply:
        """Copy what a replication worker asks for: the bytes take the shortest way. Raises as `add_entries`, and EntryLost,
        Unavailable, if it has copied nothing."""
        found, store = request.found, request.store
        looked = await self.check_entries(m.CheckRequest(store, found.ledger, found.token, request.entries))
        lacking = rules.lacking(looked)
        copied = size = 0
        until = self.world.now() + self.options.copy_s
        while copied < len(lacking) and size < request.bytes_max and (not copied or self.world.now() < until):
            step_bytes = min(self.options.answer_bytes, request.bytes_max - size)
            try:
                read = await self._reader.read_some(found, lacking[copied:], step_bytes, lacks=store)
                await self._add(m.AddRequest(store, found.ledger, found.token, tuple(read), recovery=True))
            except EblaError:
                if not copied:
                    raise
                break  # the next request meets it again
            copied += len(read)
            size += sum(len(entry.data) for entry in read)
        whole = copied == len(lacking)
        return m.CopyReply(looked.checked if whole else request.entries.index(lacking[copied]), copied, size)

    @rpc
    async def read_tail(self, request: m.TailRequest) -> m.Tail:
        """Read the end of a ledger; with `poll_ms`, wait for an acknowledged entry after `after`."""
        self._require(request.store)
        if request.fence:
            await self._require_there(request)
        ledger = request.ledger
        head = rules.admit(self.heads.get(ledger), ledger, request.token)
        if request.fence:
            await self._fence(ledger, head)
        elif request.poll_ms:
            wait_s = min(request.poll_ms / 1000, self.options.poll_s_max)
            await self._confirmed.after(ledger, request.after, wait_s, head.fenced)
        fenced = ledger in self.heads and self.heads[ledger].fenced
        lac = self._confirmed.lac(ledger)
        return m.Tail(lac, rules.ranges(self.entries.numbers(ledger, max(lac, request.after))), fenced)

    @rpc
    async def confirm(self, request: m.ConfirmRequest) -> m.Done:
        """Take notice of the last acknowledged entry; a hint for readers, kept in memory only."""
        self._require(request.store)
        rules.admit(self.heads.get(request.ledger), request.ledger, request.token)
        self._confirmed.learn(request.ledger, request.lac, request.closed)
        return m.Done(self._presence.leaving)

    # -- deleting --------------------------------------------------------------------------------------------

    @rpc
    async def delete_ledger(self, request: m.DeleteRequest) -> m.Done:
        """Refuse everything about the ledger, durably; its entries are deleted in the background."""
        self._require(request.store)
        head = self.heads.get(request.ledger)
        # Also for a ledger that may be forgotten: an add may have heard from the registry that it exists.
        if head is None or not head.deleted:
            head = rules.admit(head, request.ledger, request.token)
        await self._save("delete", request.ledger, Head(head.token, True, True))
        self.world.spawn(self._delete_leftovers([request.ledger]), f"delete ledger {request.ledger}")
        return m.Done()

    @rpc
    async def drop_entries(self, request: m.DropRequest) -> m.Done:
        """Delete the entries, and keep the promises: the ledger stays fenced, and a repair may store entries again. Raises
        LedgerBusy (see visits.py)."""
        self._require(request.store)
        head = rules.admit(self.heads.get(request.ledger), request.ledger, request.token)
        with self._visits.dropping(request.ledger, request.sign):
            await self._save("drop", request.ledger, rules.fenced(head))
            await self._delete_entries(request.ledger)
            self._require_running()  # or some are left
        return m.Done()

    async def _delete_leftovers(self, left: list[int]) -> None:
        """The entries of these deleted ledgers. On a full disk, they are deleted when there is space again."""
        while left and self._running:  # the next start continues
            try:
                await self._delete_entries(left[-1])
                left.pop()
            except DiskFull as error:
                log.warning("%s: ledger %d is deleted later: %s", self.world.address, left[-1], error)
                await self.world.clock.sleep(self.options.space_s)
        await self._forget()

    async def _forget(self) -> None:
        """Of the deleted ledgers without entries here, keep the newest heads only."""
        async with self._mover.turn:
            due = self._forgotten.due(ledger for ledger, head in self._saved.items() if head.deleted)
            gone = [at for at in due[: self.options.delete_entries] if self.entries.last(at) is None]
            if not gone or not self._running:
                return
            try:
                await self._commits.commit(self._forgotten.changes(gone))
            except DiskFull:  # the next deletion tries again
                return
            for ledger in gone:
                del self.heads[ledger], self._saved[ledger]
                self._ends.pop(ledger, None)
            self._with_entries.difference_update(gone)
            self._confirmed.forget(gone)

    async def _delete_entries(self, ledger: int) -> None:
        """In commits of bounded size, so that other requests need not wait long."""
        await self._mover.move_all()  # what has arrived before is removed
        (start, stop), most = records.bounds(ledger), self.options.delete_entries
        while self._running and (keys := self._environment.keys(ENTRIES, start, stop, limit=most)):
            after = keys[-1] + b"\0"
            await self._commits.commit([DeleteRange(ENTRIES, start, after)])
            start = after
        if self.entries.last(ledger) is None:
            self._with_entries.discard(ledger)

    # -- status ----------------------------------------------------------------------------------------------

    def ledgers(self) -> list[int]:
        """Those that are not deleted, or whose deletion is not durable yet: a worker must see that it is still to be done."""
        return [ledger for ledger, head in self.heads.items() if not self._saved.get(ledger, head).deleted]

    @property
    def held(self) -> int:
        """The number of ledgers with entries here. The head of one whose entries have moved away stays."""
        return sum(not head.deleted and at in self._with_entries for at, head in self.heads.items())

    @rpc
    async def list_ledgers(self, request: m.ListRequest) -> m.ListReply:
        """List the ledgers that are not deleted, some at a time."""
        self._require(request.store)
        limit = max(1, min(request.limit, self.options.list_ledgers))
        ids = sorted(ledger for ledger in self.ledgers() if ledger > request.after)
        found = (
            m.Listed(at, self.heads[at].token, self.entries.last(at) is not None, self._visits.sign(at))
            for at in ids[:limit]
        )
        return m.ListReply(tuple(found), len(ids) > limit)

    @rpc
    async def store_status(self, request: am.Empty) -> m.StoreStatus:
        self._require_running()
        return m.StoreStatus(
            self.instance.uuid,
            self.instance.seqno,
            self.world.address,
            self.held,
            sum(head.fenced for head in self.heads.values()),
            self._environment.size_bytes(),
            self.free_bytes,
            self.read_only,
            self._presence.leaving,
            self._commits.oldest_s,
        )

    def validate(self) -> None:
        """Assert what must hold between two events."""
        for ledger, head in self._saved.items():
            now = self.heads[ledger]
            assert now.token == head.token and now.fenced >= head.fenced and now.deleted >= head.deleted, (
                ledger
            )
