"""How one configuration of a PacificA tablet follows another."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ebla.actors.replication.appointments import after_end, appointed, grant, next_members
from ebla.actors.replication.configuration import NON_VOTER, PRE_VOTER, VOTER, Configuration, Peer
from ebla.storage.errors import InvalidArgument
from tests.pacifica.group import configuration

FIRST = configuration("abc", 2)
D = Peer("d", "host-d", NON_VOTER, promote=True)
ASKED = appointed(FIRST, "a")


@pytest.mark.parametrize(
    ("asked", "sender"),
    [(ASKED, "b"), (FIRST, "a"), (appointed(ASKED, "a"), "a")],
    ids=["by a secondary", "of the same ballot", "of a ballot after the next"],
)
def test_a_request_that_does_not_follow_the_catalog_is_answered_by_the_catalog(
    asked: Configuration, sender: str
) -> None:
    assert grant(FIRST, asked, sender) is None
    assert grant(FIRST, ASKED, "a") == ASKED


@pytest.mark.parametrize(
    ("asked", "rule"),
    [
        (replace(ASKED, primary="d"), "the primary is a voter"),
        (replace(ASKED, peers=(*FIRST.peers, D), primary="d"), "the primary is a voter"),
        (replace(ASKED, peers=(*FIRST.peers, replace(D, member=VOTER)), primary="d"), "only a voter becomes"),
        (replace(ASKED, peers=(*FIRST.peers, D, D)), "named once"),
        (replace(ASKED, peers=(*FIRST.peers, replace(D, member=VOTER))), "only a learner becomes"),
        (replace(ASKED, peers=FIRST.peers[:1]), "min_members voters stay"),
        (replace(ASKED, unsafe=1), "marks"),
        (replace(ASKED, min_members=1), "marks"),
        (replace(ASKED, settled=2), "a settled ballot"),
    ],
)
def test_a_request_that_no_primary_makes_is_refused(asked: Configuration, rule: str) -> None:
    with pytest.raises(InvalidArgument, match=rule):
        grant(FIRST, asked, "a")


def test_a_learner_that_becomes_a_voter_and_a_voter_that_becomes_a_learner_lose_their_marks() -> None:
    marked = replace(FIRST, peers=(FIRST.peers[0], replace(FIRST.peers[1], replace=True), D))
    a, b, d = next_members(marked, ["d"], ["b"])
    assert (a, b) == (FIRST.peers[0], replace(FIRST.peers[1], member=NON_VOTER, promote=True))
    assert d == replace(D, member=VOTER, promote=False)


def test_those_that_fail_first_lose_their_vote_first() -> None:
    assert [peer.member for peer in next_members(FIRST, (), ["c", "b"])] == [VOTER, VOTER, NON_VOTER]


def end(
    ended: str, *, silent: bool, alive: str, gone: str = "", stored: Configuration = FIRST
) -> Configuration | None:
    loads = {"a": 0, "b": 9, "c": 5}
    return after_end(
        stored,
        ended,
        silent=silent,
        gone=lambda uuid: uuid in gone,
        alive=lambda uuid: uuid in alive,
        rank=lambda uuid: (loads[uuid],),
    )


def test_the_live_voter_that_leads_least_follows_a_primary_that_has_ended() -> None:
    made = end("a", silent=True, alive="bc")
    assert made is not None and (made.primary, made.index) == ("c", 2)
    assert [peer.kind for peer in made.peers] == [PRE_VOTER, VOTER, VOTER]
    restarted = end("a", silent=False, alive="abc")
    assert restarted == replace(FIRST, primary="c", index=2)
    assert end("a", silent=True, alive="") is None
    only_b = end("a", silent=True, alive="b")
    assert only_b is not None and only_b.primary == "b"


def test_a_secondary_that_has_ended_loses_its_vote_only_if_it_is_silent() -> None:
    made = end("b", silent=True, alive="ac")
    assert made is not None and made.primary == "a"
    assert [peer.kind for peer in made.peers] == [VOTER, PRE_VOTER, VOTER]
    assert end("b", silent=False, alive="abc") is None
    learner = replace(FIRST, peers=(*FIRST.peers[:2], replace(FIRST.peers[2], member=NON_VOTER)))
    assert end("c", silent=True, alive="ab", stored=learner) is None
    assert end("d", silent=True, alive="abc") is None


def test_a_primary_without_a_sign_of_life_stays_until_it_is_gone() -> None:
    assert end("b", silent=False, alive="c") is None
    made = end("b", silent=False, alive="c", gone="a")
    assert made is not None and made.primary == "c"
    assert end("b", silent=True, alive="", gone="a") is None, "b may be the one that returns first"
