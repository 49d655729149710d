"""The requests of one writer to all nodes of a journal, each step at a majority.

One session serves one writer.
The steps are those of recovery.py and writer.py, in their order; none is tried twice. After an error the
session is over, because the request may have been carried out: another session, with a higher epoch, finds
out. A node's requests wait for each other, so `write_timeout_s` limits a step as a whole, not only each
request. Only the acceptance of a recovery, which may be a large download, gets more time; its request is
repeated every `write_timeout_s`, because it may be lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from ebla.actors.errors import AlreadyPresent, Unavailable
from ebla.actors.journal import messages as m
from ebla.actors.journal.options import JournalOptions
from ebla.actors.journal.quorum import call_nodes, majority
from ebla.actors.journal.writer.channel import Channel, ChannelStatus, Commits
from ebla.actors.journal.writer.holder import Holder
from ebla.actors.world import World

T = TypeVar("T")


class Session:
    """The session of one writer. With a `holder`, the new epoch also takes the lease."""

    def __init__(self, world: World, options: JournalOptions, holder: Holder | None = None) -> None:
        options.validate()
        self.holder = holder
        self.world = world
        self.options = options
        self.epoch = 0
        self.commits = Commits()
        self.channels = [Channel(world, options, node, self.commits) for node in options.nodes]

    # -- becoming the writer ---------------------------------------------------------------------------------

    async def states(self) -> dict[str, m.JournalStateReply]:
        journal = self.options.journal
        return await self._majority(
            "read the epochs",
            lambda channel: channel.ask("journal_state", lambda stamp: journal, m.JournalStateReply),
        )

    async def new_epoch(self, epoch: int) -> dict[str, m.NewEpochReply]:
        """Begin the first epoch of this writer, or the next one.

        For the next one, a node promises only if it has promised no others an epoch since.
        """
        assert epoch > self.epoch, (epoch, self.epoch)
        asked_at = self.world.now()
        claim = None
        if self.holder is not None:
            claim = self.holder.claim
            self.holder.seek(epoch)
        request = m.NewEpochRequest(self.options.journal, epoch, claim, after=self.epoch)
        promises = await self._majority(f"begin epoch {epoch}", lambda channel: channel.promise(request))
        self.epoch = epoch
        if self.holder is not None:
            self.holder.won(epoch, asked_at)
        for channel in self.channels:
            channel.epoch = epoch
        return promises

    async def prepare(self, start: int) -> dict[str, m.Prepared]:
        return await self._majority(
            f"prepare the recovery of segment {start}",
            lambda channel: channel.ask(
                "prepare_recovery", lambda stamp: m.PrepareRequest(stamp, start), m.Prepared
            ),
        )

    async def accept(self, chosen: m.SegmentState, sources: tuple[str, ...]) -> None:
        timeout_s = self.options.recovery_timeout_s
        await self._majority(
            f"recover segment {chosen.start}",
            lambda channel: channel.ask(
                "accept_recovery",
                lambda stamp: m.AcceptRequest(stamp, chosen, sources),
                m.Done,
                repeat_s=timeout_s,
            ),
            timeout_s,
        )

    # -- writing ---------------------------------------------------------------------------------------------

    async def move_on(self) -> None:
        """Begin an epoch above every epoch that a node has promised to a contender, if there is one.

        No request is under way, and the last segment is finalized.
        """
        promised = max(channel.promised for channel in self.channels)
        if promised > self.epoch:
            await self.new_epoch(promised + 1)

    async def start_segment(self, start: int, before: int) -> None:
        await self._majority(f"start segment {start}", lambda channel: channel.start_segment(start, before))

    async def send(self, segment: int, first: int, edits: Sequence[bytes], digest: int) -> None:
        """Send edits; they are committed when this returns."""
        last = first + len(edits) - 1
        await self._majority(
            f"write edits {first} to {last}", lambda channel: channel.edits(segment, first, edits, digest)
        )
        self.committed(last)

    async def finalize(self, start: int, end: int, digest: int) -> None:
        await self._majority(
            f"finalize segment {start}", lambda channel: channel.finalize(start, end, digest)
        )

    async def purge(self, before: int) -> None:
        await self._majority(
            f"purge what is before edit {before}",
            lambda channel: channel.ask("purge", lambda stamp: m.PurgeRequest(stamp, before), m.Done),
        )

    def committed(self, txid: int) -> None:
        """Note the committed txid; from here on every request carries it."""
        self.commits.txid = max(self.commits.txid, txid)
        self.commits.at = self.world.now()

    def send_heartbeats(self) -> None:
        for channel in self.channels:
            channel.send_heartbeat()

    def statuses(self) -> list[ChannelStatus]:
        return [channel.status() for channel in self.channels]

    def close(self) -> None:
        name = self.options.journal.name
        for channel in self.channels:
            channel.close(Unavailable(f"the writer of journal {name} was closed before this was sent"))

    async def _majority(
        self, what: str, ask: Callable[[Channel], asyncio.Future[T]], timeout_s: float | None = None
    ) -> dict[str, T]:
        for channel in self.channels:
            if channel.broken is not None:  # the node answered so after a majority had answered
                raise channel.broken
        calls = {channel.node: ask(channel) for channel in self.channels}
        limit = self.world.clock.timeout(timeout_s or self.options.write_timeout_s)
        return await majority(self.options.journal.name, what, calls, self.options.majority, limit)


async def format_journal(world: World, options: JournalOptions, *, force: bool = False) -> None:
    """Create the journal on all its nodes. After an error, call this again.

    Every node must answer, and none may have used the journal: a node that lost the journal and got an
    empty one instead would have forgotten its promises.
    """
    options.validate()
    name, timeout_s, everyone = options.journal.name, options.format_timeout_s, len(options.nodes)
    states: dict[str, m.FormatState] = {}
    if not force:
        asked, what = m.JournalName(name), "look for it"
        states = await call_nodes(
            world, options, what, "format_state", asked, m.FormatState, timeout_s, needed=everyone
        )
    for node, state in states.items():
        if state.used:
            raise AlreadyPresent(
                f"journal {name} is in use on {node}; force deletes it, on all nodes", what=name
            )
    request = m.FormatRequest(options.journal, options.nodes, force)
    await call_nodes(world, options, "format", "format", request, m.Done, timeout_s, needed=everyone)
