"""When the masters' journal is formatted or refused, and which changes of a deployment are allowed."""

from __future__ import annotations

from typing import Any

import pytest

from ebla.actors.errors import Unavailable
from ebla.actors.journal.errors import ForeignJournal, NotFormatted
from ebla.actors.journal.messages import FormatState, JournalId
from ebla.actors.journal.options import JournalOptions
from ebla.placement.config import configure
from ebla.placement.deploy.slots import Host, seat
from ebla.placement.journal import catalog
from ebla.placement.journal.format import Said, to_make, verify
from ebla.placement.state import Deployment, JournalMemory
from ebla.storage.errors import InvalidArgument

NODES = ("journal/0", "journal/1", "journal/2")
JOURNAL = JournalOptions(journal=JournalId("catalog", "ours"), nodes=NODES)

EMPTY = FormatState(None)
OURS = FormatState("ours", NODES)
USED = FormatState("ours", NODES, used=True)
OTHER = FormatState("other", NODES, used=True)
SILENT = Unavailable("it is cut off")


def replies(*states: Said) -> dict[str, Said]:
    return dict(zip(NODES, states, strict=True))


def test_a_journal_that_no_node_has_is_made() -> None:
    assert to_make(JOURNAL, replies(EMPTY, EMPTY, EMPTY)) == ("ours", True)


def test_a_half_made_journal_is_completed() -> None:
    assert to_make(JOURNAL, replies(OURS, EMPTY, EMPTY)) == ("ours", True)
    assert to_make(JOURNAL, replies(EMPTY, OURS, OURS)) == ("ours", True)


def test_a_journal_that_was_made_before_a_crash_is_not_made_again() -> None:
    assert to_make(JOURNAL, replies(OURS, OURS, OURS)) == ("ours", False)
    assert to_make(JOURNAL, replies(USED, EMPTY, USED)) == ("ours", False)


def test_an_empty_majority_beside_a_node_that_was_used_is_refused() -> None:
    with pytest.raises(NotFormatted, match=r"journal/1 is empty.*mount it, or"):
        to_make(JOURNAL, replies(USED, EMPTY, EMPTY))


def test_a_foreign_journal_is_refused_with_the_remedy() -> None:
    with pytest.raises(ForeignJournal, match=r"journal/2 .* another deployment .*data_dir of its own"):
        to_make(JOURNAL, replies(EMPTY, EMPTY, OTHER))


def test_a_journal_that_all_nodes_have_is_adopted_if_its_id_was_lost() -> None:
    assert to_make(JOURNAL, replies(OTHER, OTHER, OTHER)) == ("other", False)
    fewer = FormatState("other", (*NODES, "journal/3", "journal/4"), used=True)
    with pytest.raises(InvalidArgument, match="set journals to 5"):
        to_make(JOURNAL, replies(fewer, fewer, fewer))


def test_a_journal_is_made_only_if_every_node_answers() -> None:
    with pytest.raises(Unavailable, match=r"journal/1 gives no answer .*start its host"):
        to_make(JOURNAL, replies(EMPTY, SILENT, EMPTY))


def test_a_minority_without_the_journal_is_a_warning_and_a_majority_an_error() -> None:
    assert verify(JOURNAL, replies(USED, USED, SILENT)) == []
    (warning,) = verify(JOURNAL, replies(USED, EMPTY, USED))
    assert "journal/1 is empty" in warning and "continue without it" in warning
    assert "another deployment" in verify(JOURNAL, replies(OTHER, USED, USED))[0]
    with pytest.raises(NotFormatted, match="journal/1 is empty"):
        verify(JOURNAL, replies(USED, EMPTY, EMPTY))


# -- allowed changes of a deployment -------------------------------------------------------------------------


def deployment(
    masters: int, journals: int, formatted: bool = True, grown: bool = False, joining: tuple[str, ...] = ()
) -> Deployment:
    slots = tuple("abcde")
    in_master = journals == 1 or grown
    journal = JournalMemory(
        id="i", slots=slots[:journals], in_master=in_master, formatted=formatted, joining=joining
    )
    config = configure({"name": "t", "masters": masters, "journals": journals})
    return Deployment(uuid="u", revision=3, config=config, masters=slots[:masters], journal=journal)


@pytest.mark.parametrize(
    ("before", "settings", "words"),
    [
        (deployment(2, 3), {"masters": 1, "journals": 1}, "journals is 1, but .* set journals to 3"),
        (deployment(2, 3), {"masters": 2, "journals": 5}, "journals is 5, but .* set journals to 3"),
        (deployment(2, 3), {"masters": 1, "journals": 3}, "masters is 1, but there are 2.* set masters to 2"),
        (deployment(1, 3, grown=True), {"journals": 5}, "journals is 5, but .* set journals to 3"),
        (deployment(1, 3, grown=True), {"journals": 1}, "journals is 1, but .* set journals to 3"),
        (deployment(1, 1, joining=("b", "c")), {"journals": 1}, "journals is 1, but .* set journals to 3"),
        (
            deployment(1, 1, joining=("b", "c")),
            {"journals": 5},
            "grows to 3 nodes, and a growth is not undone",
        ),
    ],
)
def test_an_impossible_change_is_refused_with_the_present_setting(
    before: Deployment, settings: dict[str, int], words: str
) -> None:
    with pytest.raises(InvalidArgument, match=words):
        catalog.require_possible(before, configure({"name": "t", "masters": 1, **settings}), [])


def test_masters_are_added_only_while_no_role_runs() -> None:
    wanted = configure({"name": "t", "masters": 3, "journals": 3})
    for before in (deployment(1, 1), deployment(2, 3)):
        catalog.require_possible(before, wanted, [])
        with pytest.raises(InvalidArgument, match="`ebla down`, then `ebla up`"):
            catalog.require_possible(before, wanted, ["master/0"])
    catalog.require_possible(deployment(3, 3), wanted, ["master/0"])


@pytest.mark.parametrize(
    "settings", [{"tablet_server": {"beacon_lease_s": 3.5}}, {"master": {"detector": {"grace_s": 9.0}}}]
)
def test_times_on_which_leases_rest_change_only_while_no_role_runs(settings: dict[str, Any]) -> None:
    before = deployment(1, 1)
    wanted = configure({"name": "t", "masters": 1, "journals": 1, **settings})
    catalog.require_possible(before, wanted, [])
    with pytest.raises(InvalidArgument, match=r"would change while 1 roles run .* `ebla down`"):
        catalog.require_possible(before, wanted, ["tablet-server/a"])


def test_a_journal_of_one_node_grows_while_the_deployment_runs() -> None:
    before, wanted = deployment(1, 1), configure({"name": "t", "masters": 1, "journals": 3})
    catalog.require_possible(before, wanted, ["master/0"])
    found = seat("abcde", 1, 3, before.masters, ("a",))
    growing = catalog.planned(before.journal, found.journals)
    assert (growing.slots, growing.joining, growing.in_master) == (("a",), ("b", "c"), True)
    interrupted = deployment(1, 1, joining=growing.joining)
    assert settled(interrupted, hosts("10.0.0.1")) == (1, 3)
    catalog.require_possible(interrupted, wanted, ["master/0"])
    assert catalog.planned(interrupted.journal, growing.wanted) == interrupted.journal


def test_a_journal_that_was_never_made_can_be_planned_again() -> None:
    before = deployment(2, 3, formatted=False)
    wanted = configure({"name": "t", "masters": 1, "journals": 1})
    catalog.require_possible(before, wanted, [])
    assert catalog.kept(before, wanted) is None
    assert catalog.kept(before, before.config) == before.journal


def test_the_only_node_of_a_new_journal_is_with_the_master() -> None:
    assert catalog.planned(None, ("a",)).in_master
    assert not catalog.planned(None, ("a", "b", "c")).in_master


# -- the default numbers -------------------------------------------------------------------------------------


def hosts(*addresses: str) -> list[Host]:
    return [Host(f"host-{number}", f"node-{number}", address) for number, address in enumerate(addresses)]


def settled(before: Deployment, where: list[Host], **given: int) -> tuple[int, int]:
    return catalog.counts(catalog.settled(configure({"name": "t", **given}), before, where))


def test_a_new_deployment_on_three_machines_has_a_standby_and_three_journal_nodes() -> None:
    new = Deployment(uuid="u", revision=0, config=configure({"name": "t"}))
    three, one = hosts("10.0.0.1", "10.0.0.2", "10.0.0.3"), hosts("10.0.0.1", "10.0.0.1", "10.0.0.1")
    assert settled(new, three) == (2, 3)
    assert settled(new, one) == settled(new, three[:2]) == (1, 1)
    assert settled(new, three, masters=1) == settled(new, three, journals=1) == (1, 1)
    assert settled(new, one, journals=3) == (2, 3)
    assert settled(new, one, masters=1, journals=3) == (1, 3)


def test_a_deployment_keeps_its_numbers_unless_others_are_given() -> None:
    three = hosts("10.0.0.1", "10.0.0.2", "10.0.0.3")
    assert settled(deployment(1, 1), three) == (1, 1)
    assert settled(deployment(2, 3), three[:1]) == (2, 3)
    assert settled(deployment(2, 3), three, masters=3, journals=3) == (3, 3)


def test_more_masters_are_judged_by_the_existing_journal_and_not_by_the_given_settings() -> None:
    three = hosts("10.0.0.1", "10.0.0.2", "10.0.0.3")
    assert settled(deployment(2, 3), three, masters=3) == (3, 3)
    new = Deployment(uuid="u", revision=0, config=configure({"name": "t"}))
    for without in (deployment(1, 1), new):
        with pytest.raises(InvalidArgument, match="masters is 3, but the journal has one node"):
            settled(without, three, masters=3)


def test_more_roles_than_hosts_are_refused_before_any_start() -> None:
    local = hosts("127.0.0.1", "127.0.0.1", "127.0.0.1")
    for settings, words in (
        ({"masters": 2, "journals": 5}, "journals is 5, but only 3 hosts .*lower `journals`"),
        ({"masters": 4, "journals": 3}, "masters is 4, but only 3 hosts .*lower `masters`"),
        ({"masters": 3}, "masters is 3, but the journal has one node"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            catalog.require_room(configure({"name": "t", **settings}), None, local)
    catalog.require_room(configure({"name": "t", "masters": 3, "journals": 3}), None, local)
    catalog.require_room(configure({"name": "t", "masters": 3}), deployment(2, 3), local)
