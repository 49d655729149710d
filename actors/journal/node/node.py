"""The journal node: keeps copies of journals, and the promises that make a majority of copies one journal.

    durable     a change is synced before the node answers "done"
    fenced      once the node has promised an epoch, it refuses older writers (rules.py)
    never new   a journal that the node does not have is NotFormatted, not empty: the node counts for no
                majority of it

One node hosts many journals, each in its own LMDB environment. The requests of one journal are carried
out one after the other; reads run concurrently.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Sequence

from ebla.actors import messages as am
from ebla.actors.asking.ends import report_ends
from ebla.actors.errors import AlreadyPresent, NotRunning, Unavailable
from ebla.actors.figures import Figure
from ebla.actors.journal import messages as m
from ebla.actors.journal import records
from ebla.actors.journal.errors import ForeignJournal, NodesMoved, NotFormatted
from ebla.actors.journal.messages import ANY_VERSION
from ebla.actors.journal.node import growth, rejoin
from ebla.actors.journal.node.admissions import Admissions
from ebla.actors.journal.node.journal import Journal
from ebla.actors.journal.node.measures import measure_node, status
from ebla.actors.journal.node.sync import Sync
from ebla.actors.journal.options import JournalNodeOptions, valid_name, valid_nodes
from ebla.actors.journal.records import DATABASES, FORMAT_KEY, LAYOUT, STATE, STATE_KEY, Format, State
from ebla.actors.world import Role, World, new_id, rpc
from ebla.storage.environment import Environment, Put
from ebla.storage.errors import Corruption, Damaged, EblaError, InvalidArgument

log = logging.getLogger(__name__)

JOURNALS = "journals"
MAP_BYTES = 64 << 20


class JournalNode(Role):
    def __init__(
        self, world: World, options: JournalNodeOptions | None = None, *, in_master: bool = False
    ) -> None:
        """`in_master`: as long as the journal has only this node, its only user is the only master, in the
        same process and directory."""
        self.world = world
        self._in_master = in_master
        self.options = options or JournalNodeOptions()
        self.options.validate()
        self.journals: dict[str, Journal] = {}
        self.failed: dict[str, EblaError] = {}
        self.instance = am.ServerInstance("", 0, "")
        self.sync = Sync(world, self.journals, self.pages, self.options)
        self.admissions = Admissions(world, self.options)
        self._running = False
        self._formatting = asyncio.Lock()
        self._fetching: set[str] = set()  # the journals that a task fetches to join them

    # -- life ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        instance = await self.world.disk.open_instance(new_id(self.world.random))
        await self.begin(am.ServerInstance(instance.uuid, instance.seqno, new_id(self.world.random)))
        self.world.spawn(report_ends(self.world, self.options.masters), "ends of neighbours")

    async def begin(self, instance: am.ServerInstance) -> None:
        """Serve from the directory, which is already open."""
        self.instance = instance
        for name in self.world.disk.list(JOURNALS):
            await self._open(name)
        self._running = True
        self.world.spawn(self.sync.run(), "sync")
        for name in sorted(self.journals):
            self.admissions.begin(self.journals[name])

    async def stop(self) -> None:
        self._running = False

    def measure(self) -> Iterable[Figure]:
        self._require_running()
        return measure_node(self)

    async def _open(self, name: str) -> None:
        """Open a journal. A damaged journal is not served; the node still serves the others."""
        environment = None
        try:
            environment = await self._environment(name, create=False)
            form = records.load_format(environment, environment.path)
            if form is None:  # the node ended while it formatted the journal
                await environment.close()
                return
            journal = self._make_journal(environment, form)
            await journal.load()
        except (Corruption, Damaged) as error:
            log.error("%s does not serve journal %s: %s", self.world.address, name, error)
            self.failed[name] = error
            if environment is not None:
                await environment.close()
            return
        self.journals[name] = journal

    async def _environment(self, name: str, *, create: bool) -> Environment:
        return await self.world.disk.open_environment(
            f"{JOURNALS}/{name}", DATABASES, create=create, map_bytes=MAP_BYTES
        )

    def _require_running(self) -> None:
        if not self._running:
            raise NotRunning(f"{self.world.address} is starting or stopping", state="starting")

    def _require_sound(self, name: str) -> None:
        error = self.failed.get(name)
        if error is not None:
            raise type(error)(error.message, **error.values())

    def _journal(self, wanted: m.JournalId) -> Journal:
        self._require_running()
        found = self.journals.get(wanted.name)
        if found is None:
            self._require_sound(wanted.name)
            raise NotFormatted(
                f"{self.world.address} has no journal {wanted.name}: if its directory was lost, let it rejoin",
                journal=wanted.name,
            )
        if found.form.journal.id != wanted.id:
            raise ForeignJournal(
                f"journal {wanted.name} of {self.world.address} is another one: its id is "
                f"{found.form.journal.id}, not {wanted.id}",
                journal=wanted.name,
                wanted=wanted.id,
                found=found.form.journal.id,
            )
        version = found.form.journal.version
        if ANY_VERSION < wanted.version < version:
            raise NodesMoved(
                f"journal {wanted.name} has the nodes {', '.join(found.form.nodes)} now; ask them",
                journal=wanted.name,
                version=version,
                nodes=list(found.form.nodes),
            )
        if wanted.version > version:
            raise Unavailable(
                f"{self.world.address} is not yet a node of version {wanted.version} of journal {wanted.name}; ask again"
            )
        return found

    # -- making a journal ------------------------------------------------------------------------------------

    @rpc
    async def format(self, request: m.FormatRequest) -> m.Done:
        """Create the journal, durably when this answers.

        An existing journal is kept unless `force` is set. A repeated format of a journal without any
        promise or edit gets the same answer as the first.
        """
        form = self._form(request.journal, request.nodes)
        async with self._formatting:
            return await self._format(form, request.force)

    def _form(self, journal: m.JournalId, nodes: tuple[str, ...]) -> Format:
        """Return the format of a journal that this node is to have."""
        self._require_running()
        valid_name(journal.name)
        valid_nodes(nodes)
        if self.world.address not in nodes:
            raise InvalidArgument(
                f"{self.world.address} is not one of the journal's nodes: {', '.join(nodes)}"
            )
        return Format(LAYOUT, journal, nodes)

    async def _format(self, form: Format, force: bool) -> m.Done:
        name = form.journal.name
        if (there := self.journals.get(name)) is not None:
            if there.form == form and there.view.state == State() and not force:
                return m.Done()
            if not force:
                raise AlreadyPresent(
                    f"{self.world.address} has a journal {name} with edits up to {there.view.last}; force deletes it",
                    what=name,
                )
            del self.journals[name]
            await there.close()
        elif not force:
            self._require_sound(name)
        await self._create("format", form, State())
        return m.Done()

    async def _create(self, how: str, form: Format, state: State) -> None:
        """Create the journal in place of one that was half made."""
        name = form.journal.name
        path = f"{JOURNALS}/{name}"
        if self.world.disk.exists(path):
            await self.world.disk.remove(path)
        environment = await self._environment(name, create=True)
        await self.world.faults.here(f"journal.{how}.before_commit")
        await environment.commit(
            [Put(STATE, [records.seal(FORMAT_KEY, form)]), Put(STATE, [records.seal(STATE_KEY, state)])]
        )
        await self.world.faults.here(f"journal.{how}.after_commit")
        journal = self._make_journal(environment, form)
        await journal.load()
        self.failed.pop(name, None)
        self.journals[name] = journal

    def _make_journal(self, environment: Environment, form: Format) -> Journal:
        return Journal(self.world, environment, form, locked=self._in_master)

    @rpc
    async def rejoin(self, request: m.RejoinRequest) -> m.Done:
        """Rejoin the journal: the peers' promises are durable here when this answers.

        The node then fetches the segments by itself (rejoin.py). A repeated request gets the same answer
        as the first. A damaged journal here, or an older copy of it, is replaced by the peers' copies. A node
        that joins rejoins instead.
        """
        form = self._form(request.journal, request.nodes)
        async with self._formatting:
            there = self.journals.get(request.journal.name)
            old = there is not None and there.view.state.old
            if there is not None and not old:
                state = there.view.state
                if there.form != form or not state.token:
                    raise rejoin.present(self.world.address, request.journal.name)
                if not state.joining:
                    return m.Done()
            state = await rejoin.learned(self.world, request, self.options.rpc_timeout_s)
            if there is not None and old:
                del self.journals[request.journal.name]
                await there.close()
            if there is None or old:
                await self._create("rejoin", form, state)
            elif there.view.state.joining:
                await there.rejoin(state)
        self.world.spawn(self.sync.all(), "catch up")
        return m.Done()

    # -- from one node to several ----------------------------------------------------------------------------

    @rpc
    async def join(self, request: m.RejoinRequest) -> m.Joining:
        """Join the journal, and fetch the segments that the first of `nodes` has finalized.

        The answer says up to which edit this node has them; repeat the request until that is enough. The
        node counts for no majority before it is admitted.
        """
        name, form = request.journal.name, self._form(request.journal, request.nodes)
        async with self._formatting:
            there = self.journals.get(name)
            if there is None:
                self._require_sound(name)
                await self._create("join", form, State(token=new_id(self.world.random), joining=True))
            elif there.form != form:
                raise AlreadyPresent(
                    f"{self.world.address} has another journal {name}; move its directory aside, then start it again",
                    what=name,
                )
        journal = self.journals[name]
        if journal.view.state.joining and name not in self._fetching:
            self._fetching.add(name)
            self.world.spawn(self._fetch_for_joining(journal, request.nodes[0]), "fetch to join")
        return growth.joining(journal.view)

    async def _fetch_for_joining(self, journal: Journal, source: str) -> None:
        try:
            await self.sync.ask(journal, source)
        finally:
            self._fetching.remove(journal.form.journal.name)

    @rpc
    async def grow(self, request: m.GrowRequest) -> m.Done:
        """Change the journal's nodes from this only node to this node and those that join.

        Raises NodesMoved if the journal has these nodes already.
        """
        valid_nodes(request.nodes)
        journal = self._journal(request.journal)
        if journal.form.nodes != (self.world.address,) or request.nodes[0] != self.world.address:
            raise InvalidArgument(
                f"{self.world.address} is not the only node of journal {request.journal.name}"
            )
        done = await journal.grow(request)
        self.admissions.begin(journal)
        return done

    @rpc
    async def admit(self, request: m.AdmitRequest) -> m.Done:
        return await self._journal(request.journal).admit(request)

    @rpc
    async def format_state(self, request: m.JournalName) -> m.FormatState:
        """Return whether there is a journal of this name, of any id, and whether it is used."""
        self._require_running()
        self._require_sound(request.name)
        found = self.journals.get(request.name)
        if found is None:
            return m.FormatState(None)
        return m.FormatState(found.form.journal.id, found.form.nodes, used=found.view.state != State())

    # -- the writer ------------------------------------------------------------------------------------------

    @rpc
    async def journal_state(self, request: m.JournalId) -> m.JournalStateReply:
        found = self._journal(request)
        found.require_whole()
        state = found.view.state
        return m.JournalStateReply(state.promised, found.form.nodes, state.purged, state.held_ms)

    @rpc
    async def new_epoch(self, request: m.NewEpochRequest) -> m.NewEpochReply:
        """Promise an epoch durably: from now on this node refuses older writers."""
        return await self._journal(request.journal).new_epoch(request)

    @rpc
    async def lease_state(self, request: m.JournalId) -> m.LeaseState:
        return self._journal(request).lease.state()

    @rpc
    async def renew_lease(self, request: m.RenewRequest) -> m.Done:
        """Renew the lease: no other is promised an epoch here for the claimed time."""
        return await self._journal(request.journal).renew(request)

    @rpc
    async def release_lease(self, request: m.ReleaseRequest) -> m.Done:
        """End the lease: the named successor, or without one any writer, may be promised an epoch at once."""
        self._journal(request.journal).lease.release(request.token, request.successor)
        return m.Done()

    @rpc
    async def prepare_recovery(self, request: m.PrepareRequest) -> m.Prepared:
        """Return this node's state of the segment, which takes no more edits."""
        return await self._journal(request.stamp.journal).prepare(request)

    @rpc
    async def accept_recovery(self, request: m.AcceptRequest) -> m.Done:
        """Accept the chosen content durably; every later recovery learns it."""
        sources = [source for source in request.sources if source != self.world.address]

        def pages(segment: m.SegmentState) -> AsyncIterator[tuple[bytes, ...]]:
            return self.pages(request.stamp.journal, segment, sources)

        return await self._journal(request.stamp.journal).accept(request, pages)

    @rpc
    async def start_segment(self, request: m.StartSegment) -> m.Done:
        """Make the empty segment and its writer's epoch durable.

        A node that rejoins then lacks only edits that its peers have.
        """
        journal = self._journal(request.stamp.journal)
        done = await journal.start_segment(request)
        if journal.view.state.token:
            self.world.spawn(self.sync.all(), "catch up")
        return done

    @rpc
    async def journal(self, request: m.JournalRequest) -> m.Done:
        """Make the edits durable: every batch is synced, also on a node that lags behind."""
        return await self._journal(request.stamp.journal).journal(request)

    @rpc
    async def finalize(self, request: m.FinalizeRequest) -> m.Done:
        """Mark the segment as finalized, durably."""
        return await self._journal(request.stamp.journal).finalize(request)

    @rpc
    async def journal_heartbeat(self, request: m.Heartbeat) -> m.HeartbeatAnswer:
        """Make the committed txid durable."""
        return await self._journal(request.stamp.journal).heartbeat(request)

    @rpc
    async def purge(self, request: m.PurgeRequest) -> m.Done:
        """Delete the segments for good."""
        return await self._journal(request.stamp.journal).purge(request)

    # -- readers and peers -----------------------------------------------------------------------------------

    @rpc
    async def manifest(self, request: m.ManifestRequest) -> m.Manifest:
        return self._journal(request.journal).manifest()

    @rpc
    async def read(self, request: m.ReadRequest) -> m.Edits:
        """Return no edits if the edit after `after` is not here or not yet certain to stay."""
        return self._journal(request.journal).read(request, self.options.page_bytes)

    @rpc
    async def fetch(self, request: m.FetchRequest) -> m.Edits:
        """Send edits to a peer that takes this copy because a recovery chose it or it is finalized."""
        return self._journal(request.journal).fetch(request, self.options.page_bytes)

    async def pages(
        self, journal: m.JournalId, segment: m.SegmentState, sources: Sequence[str]
    ) -> AsyncIterator[tuple[bytes, ...]]:
        """Yield the edits of a segment from the first source; if a source fails, the next continues."""
        first, left = segment.start, list(sources)
        while first <= segment.end:
            if not left:
                raise Unavailable(
                    f"no peer could send segment {segment.start} of journal {journal.name}: asked "
                    f"{', '.join(sources) or 'none'}; this node asks again"
                )
            request = m.FetchRequest(journal.of_any_version(), segment, first, self.options.page_bytes)
            try:
                page = await self.world.network.call(
                    left[0], "fetch", request, m.Edits, self.options.rpc_timeout_s
                )
            except EblaError as error:
                log.warning(
                    "%s could not fetch segment %d from %s: %s", self.world.address, first, left[0], error
                )
                left.pop(0)
                continue
            assert page.edits, "a peer that has nothing says so by an error"
            first += len(page.edits)
            yield page.edits

    @rpc
    async def journal_status(self, request: am.Empty) -> m.JournalNodeStatus:
        self._require_running()
        disks = tuple(await self.world.disk.space())
        found = [status(self.journals[name]) for name in sorted(self.journals)]
        failed = {name: self.failed[name].message for name in sorted(self.failed)}
        return m.JournalNodeStatus(
            self.instance.uuid, self.instance.seqno, self.world.address, tuple(found), failed, disks
        )
