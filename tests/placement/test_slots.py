"""The hosts of a Ray cluster, and the slots of roles."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebla.actors.errors import Unavailable
from ebla.placement.deploy.slots import (
    NODE_ID_LABEL,
    SLOT_LABEL,
    DuplicateSlot,
    choose,
    machine_of,
    resource_of_its_own,
    seat,
    survey,
)

NAMES = st.lists(st.from_regex(r"[a-z]{1,3}", fullmatch=True), min_size=1, max_size=8, unique=True)


def node(node_id: str, slot: str | None = None, alive: bool = True, cpu: float = 4.0) -> dict[str, Any]:
    labels = {NODE_ID_LABEL: node_id} | ({SLOT_LABEL: slot} if slot else {})
    resources = {"CPU": cpu} if cpu else {"memory": 1e9}
    return {
        "NodeID": node_id,
        "Alive": alive,
        "Labels": labels,
        "Resources": resources,
        "NodeManagerAddress": "10.0.0.1",
    }


def test_a_host_is_named_by_its_label_and_without_one_by_its_node_id() -> None:
    found = survey([node("n2", "b"), node("n1", "a")])
    assert found.slots == ("a", "b")
    assert [host.lasting for host in found.hosts] == [True, True]
    assert [host.selector for host in found.hosts] == [{SLOT_LABEL: "a"}, {SLOT_LABEL: "b"}]
    (unlabelled,) = survey([node("n3")]).hosts
    assert (unlabelled.slot, unlabelled.lasting) == ("n3", False)
    assert unlabelled.selector == {NODE_ID_LABEL: "n3"}


@pytest.mark.parametrize("alive", [True, False])
def test_a_node_without_the_label_is_no_host_if_another_has_it_and_is_named(alive: bool) -> None:
    found = survey([node("n1", "a", alive=alive), node("n2"), node("n3", "b")])
    assert found.slots == (("a", "b") if alive else ("b",))
    assert found.left_out == (f"node n2 (10.0.0.1) has no label {SLOT_LABEL}, and others have one",)
    assert "n2" in survey([node("n1", "a", alive=alive), node("n2")], every=True).slots, "Spark uses it"
    with pytest.raises(Unavailable, match=r"node n2 .* has no label"):
        choose(survey([node("n1", "a", alive=False), node("n2")]), ())


def test_an_empty_label_is_no_label() -> None:
    empty = {**node("n1"), "Labels": {SLOT_LABEL: "", NODE_ID_LABEL: "n1"}}
    (host,) = survey([empty]).hosts
    assert (host.slot, host.lasting, host.selector) == ("n1", False, {NODE_ID_LABEL: "n1"})


def test_a_dead_node_is_no_host_and_its_label_may_come_back_on_another() -> None:
    found = survey([node("old", "a", alive=False), node("new", "a")])
    assert [(host.slot, host.node_id) for host in found.hosts] == [("a", "new")]


def test_two_nodes_with_one_label_are_refused_by_name() -> None:
    with pytest.raises(DuplicateSlot, match="nodes n1 and n2 both carry") as caught:
        survey([node("n1", "a"), node("n2", "a")])
    assert (caught.value.slot, caught.value.nodes) == ("a", ["n1", "n2"])


def test_a_node_without_cpus_gets_no_role_and_is_named() -> None:
    found = survey([node("head", "a", cpu=0), node("n1", "b")])
    assert found.slots == ("b",)
    assert "head" in found.left_out[0]


def test_named_slots_limit_the_hosts_and_a_missing_one_is_named() -> None:
    chosen = choose(survey([node("n1", "a"), node("n2", "b"), node("n3", "c")]), ["c", "a", "z"])
    assert chosen.slots == ("a", "c")
    assert chosen.left_out == ("slot z has no alive node now",)


def test_no_host_at_all_is_unavailable_with_the_reasons() -> None:
    with pytest.raises(Unavailable, match="slot z has no alive node"):
        choose(survey([node("n1", "a")]), ["z"])


def test_journal_nodes_are_on_distinct_hosts_and_beside_masters_only_if_necessary() -> None:
    assert seat(["a", "b", "c"], 2, 3).journals == ("c", "a", "b")
    assert seat(["a", "b", "c", "d", "e"], 2, 3).journals == ("c", "d", "e")


def test_a_master_keeps_its_slot_while_its_host_is_missing() -> None:
    assert seat(["a", "b", "c"], 1, seated=["z"]).masters == ("z",)


@given(NAMES, NAMES, st.data())
def test_new_hosts_move_no_master_and_no_journal_node(
    first: list[str], later: list[str], data: st.DataObject
) -> None:
    masters = data.draw(st.integers(1, len(first)))
    journals = data.draw(st.integers(1, len(first)))
    seated = seat(first, masters, journals)
    grown = sorted({*first, *later})
    again = seat(grown, masters, journals, seated.masters, seated.journals)
    assert (again.masters, again.journals) == (seated.masters, seated.journals)
    assert len(set(again.journals)) == journals
    assert again.tablet_servers == tuple(grown)
    assert len(set(again.masters)) == masters


@given(NAMES, st.data())
def test_the_order_in_which_nodes_are_listed_does_not_matter(names: list[str], data: st.DataObject) -> None:
    nodes = [node(f"id-{name}", name) for name in names]
    shuffled = data.draw(st.permutations(nodes))
    assert survey(nodes) == survey(shuffled)


def holding(node_id: str, *resources: str, alive: bool = True) -> dict[str, Any]:
    return {**node(node_id, alive=alive), "Resources": dict.fromkeys(resources, 1.0)}


def test_a_node_is_selected_by_the_resource_of_its_address() -> None:
    apart = [holding("a", "CPU", "node:10.0.0.1"), holding("b", "CPU", "node:10.0.0.2")]
    assert resource_of_its_own("b", apart) == "node:10.0.0.2"


def test_loopback_addresses_are_one_machine() -> None:
    assert machine_of("127.0.1.1") == machine_of("127.0.1.2") == machine_of("::1")
    assert len({machine_of(address) for address in ("127.0.1.1", "10.0.0.1", "10.0.0.2", "box.local")}) == 4


def test_a_node_without_its_own_resource_cannot_be_selected() -> None:
    shared = [holding("a", "CPU", "node:10.0.0.1"), holding("b", "CPU", "GPU", "node:10.0.0.1")]
    assert resource_of_its_own("b", shared) is None
    assert (
        resource_of_its_own("b", [holding("a", "node:10.0.0.1", alive=False), shared[1]]) == "node:10.0.0.1"
    )
    assert resource_of_its_own("c", shared) is None
