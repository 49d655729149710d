"""The votes that servers answered with: a server votes once in a tablet's term, also after restarts.

invariants/remembering.py checks the votes on disk. A vote that was answered but is not on disk shows only here: in the server's
answer to the next candidate, perhaps after a restart, perhaps as a tombstone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ebla.actors import messages as m
from ebla.actors.messages import peers
from ebla.actors.messages.raft import VoteReply, VoteRequest
from ebla.actors.tablet.options import TabletServerOptions
from ebla.actors.tablet.server import TabletServer
from ebla.actors.world import World, rpc


@dataclass
class Votes:
    """The candidates that servers voted for, by uuid and tablet, by term. `twice` describes a second vote in one term."""

    given: dict[tuple[str, str], dict[int, str]] = field(default_factory=dict)
    twice: str = ""

    def note(self, uuid: str, tablet: str, term: int, candidate: str) -> None:
        before = self.given.setdefault((uuid, tablet), {}).setdefault(term, candidate)
        if before != candidate and not self.twice:
            self.twice = f"{uuid} voted in term {term} of {tablet} for {before}, and for {candidate}"

    def forget(self, server: TabletServer) -> None:
        """Forget votes that the server lost to a damaged record: it does not vote until it returns as a new one."""
        for tablet, broken in server.lifecycle.broken.items():
            if broken.forgetful:
                self.given.pop((server.instance.uuid, tablet), None)


class WatchedServer(TabletServer):
    """A tablet server that notes its votes, except on an old copy of a directory."""

    def __init__(
        self, world: World, options: TabletServerOptions, votes: Votes, is_copy: Callable[[str], bool]
    ) -> None:
        super().__init__(world, options)
        self.votes = votes
        self.is_copy = is_copy

    @rpc
    async def replicate(self, envelope: peers.Envelope) -> peers.EnvelopeReply:
        reply = await super().replicate(envelope)
        for (tablet, request), answer in zip(envelope.requests, reply.answers, strict=True):
            if isinstance(request, VoteRequest) and not request.pre_vote:
                self._note(envelope.source, tablet, request, answer)
        return reply

    def _note(self, source: m.ServerInstance, tablet: str, request: VoteRequest, answer: object) -> None:
        """Note the vote, and the candidate's vote for itself."""
        if not self.is_copy(source.uuid):
            self.votes.note(source.uuid, tablet, request.term, request.candidate)
        if isinstance(answer, VoteReply) and answer.granted and not self.is_copy(self.instance.uuid):
            self.votes.note(self.instance.uuid, tablet, request.term, request.candidate)
