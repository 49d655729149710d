"""The settings of a deployment: defaults, files, flags and refusals; and the roles that `ebla up` expects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from ebla.actors.journal.messages import JournalId
from ebla.actors.journal.node.node import JournalNode
from ebla.actors.journal.options import JournalNodeOptions
from ebla.actors.ledger.auditor.auditor import Auditor
from ebla.actors.ledger.auditor.options import AuditorOptions
from ebla.actors.ledger.worker.options import WorkerOptions
from ebla.actors.ledger.worker.worker import ReplicationWorker
from ebla.actors.master.leadership.group import Master
from ebla.actors.master.options import GroupOptions
from ebla.actors.ray_shell import load
from ebla.actors.tablet.options import TabletServerOptions
from ebla.actors.tablet.server import TabletServer
from ebla.placement.config import DeploymentConfig, configure, read_file
from ebla.placement.deploy.roles import plan_roles
from ebla.placement.deploy.slots import Host, Seats, Survey
from ebla.placement.launch import expected
from ebla.storage.errors import InvalidArgument


def test_the_defaults_are_valid_and_absolute() -> None:
    config = configure({})
    assert config.namespace == "ebla-ebla"
    assert Path(config.data_dir) == Path.home() / ".ebla" / "ebla"
    assert (config.masters, config.journals, config.slots) == (None, None, ())


def test_a_file_and_flags_override_saved_settings_table_by_table(tmp_path: Path) -> None:
    file = tmp_path / "ebla.yaml"
    file.write_text("slots: [a, b, c]\ntablet_server:\n  memtable_bytes: 1000000\n  heartbeat_s: 0.25\n")
    saved = configure(read_file(file), configure({"name": "fleet", "data_dir": str(tmp_path)}))
    config = configure({"tablet_server": {"memtable_bytes": 2_000_000, "heartbeat_s": None}}, saved)
    assert (config.name, config.slots, config.data_dir) == ("fleet", ("a", "b", "c"), str(tmp_path))
    assert config.tablet_server == {"memtable_bytes": 2_000_000}


def test_role_options_have_the_settings_and_the_host() -> None:
    config = configure({"tablet_server": {"heartbeat_s": 0.2}, "master": {"unresponsive_s": 3}})
    options = config.tablet_server_options(("master/0",), "host-1", "9.9")
    assert (options.heartbeat_s, options.masters) == (0.2, ("master/0",))
    assert (options.host, options.version) == ("host-1", "9.9")
    assert config.master_options().unresponsive_s == 3


def test_masters_with_a_journal_get_each_table_of_settings() -> None:
    config = configure(
        {
            "masters": 2,
            "journals": 3,
            "master": {"unresponsive_s": 3},
            "group": {"look_s": 0.3},
            "lease": {"renew_s": 0.2},
            "journal": {"segment_s": 9},
            "journal_node": {"sync_s": 8},
        }
    )
    roles = plan_roles(config, Seats(("a", "b"), ("a", "b", "c"), ("c", "a", "b")), "the id")
    assert [(role.address, role.slot, role.directory) for role in roles] == [
        ("journal/0", "c", "journal"),
        ("journal/1", "a", "journal"),
        ("journal/2", "b", "journal"),
        ("master/0", "a", "master"),
        ("master/1", "b", "master"),
        ("tablet-server/a", "a", "tablet-server"),
        ("tablet-server/b", "b", "tablet-server"),
        ("tablet-server/c", "c", "tablet-server"),
    ]
    node, master, server = roles[0].options, roles[3].options, roles[5].options
    assert isinstance(node, JournalNodeOptions)
    assert isinstance(master, GroupOptions)
    assert isinstance(server, TabletServerOptions)
    assert node.sync_s == 8
    assert (master.masters, master.look_s, master.lease.renew_s) == (("master/0", "master/1"), 0.3, 0.2)
    assert (master.journal.journal, master.journal.segment_s) == (JournalId("catalog", "the id"), 9)
    assert master.journal.nodes == ("journal/0", "journal/1", "journal/2")
    assert master.master.unresponsive_s == 3
    assert server.masters == master.masters
    assert msgspec.msgpack.decode(roles[3].assignment(config).options, type=GroupOptions) == master


def test_the_only_journal_node_is_in_the_process_of_the_only_master_and_stays_there() -> None:
    config = configure({})
    small = plan_roles(config, Seats(("a",), ("a",), ("a",), in_master=True), "id")
    assert [load(role.role) for role in small] == [Master, TabletServer]
    grown = plan_roles(config, Seats(("a",), ("a",), ("a", "b", "c"), in_master=True), "id")
    assert [role.address for role in grown] == ["journal/1", "journal/2", "master/0", "tablet-server/a"]
    journals = [role.options.journal for role in (small[0], grown[2])]
    assert [journal.journal.version for journal in journals] == [1, 2]
    assert [journal.nodes for journal in journals] == [("master/0",), ("master/0", "journal/1", "journal/2")]


def test_a_single_master_can_have_a_journal_of_several_nodes() -> None:
    roles = plan_roles(configure({"journals": 3}), Seats(("a",), ("a",), ("a", "b", "c")), "id")
    assert [load(role.role) for role in roles] == [JournalNode] * 3 + [Master, TabletServer]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"slot": ["a"]}, "slot is no setting; did you mean slots"),
        (
            {"tablet_server": {"memtable": 1}},
            r"tablet_server.memtable is no setting; did you mean tablet_server.memtable_bytes",
        ),
        ({"tablet_server": {"host": "x"}}, "tablet_server.host is no setting"),
        (
            {"tablet_server": {"memtable_bytes": "64M"}},
            r"tablet_server.memtable_bytes: expected `int`, got `str`",
        ),
        ({"tablet_server": {"memtable_bytes": 0}}, "tablet_server: memtable_bytes must be above 0"),
        ({"tablet_server": {"copy_bytes_per_s": -5}}, "tablet_server: copy_bytes_per_s must be 0 "),
        ({"masters": "three"}, r"masters: expected `int \| null`, got `str`"),
        ({"masters": 0}, "masters must be at least 1"),
        (
            {"masters": 3, "journals": 1},
            "masters is 3, but the journal has one node.*set journals to 3, or masters to 1",
        ),
        ({"masters": 2, "journals": 4}, "journals must be an odd number.*set journals to 3 or 5"),
        ({"journals": 0}, "journals must be 1 or a larger odd number, not 0"),
        (
            {"masters": 2, "journals": 3, "slots": ["a"]},
            "masters is 2, but slots names only a; lower masters",
        ),
        ({"journals": 3, "slots": ["a", "b"]}, "journals is 3, but slots names only a, b; lower journals"),
        ({"journal": {"nodes": ["x"]}}, "journal.nodes is no setting"),
        ({"journal": {"segment_s": 0}}, "journal: segment_s must be greater than zero"),
        ({"group": {"lease": {}}}, "group.lease is no setting"),
        ({"lease": {"lease_s": 3.0}}, "lease: lease_s must be below held_s"),
        ({"journal_node": {"sync": 1}}, "journal_node.sync is no setting; did you mean journal_node.sync_s"),
        ({"slots": ["a", "b", "a"]}, "slots names a twice"),
        ({"name": "No Spaces"}, "name must be"),
        ({"data_dir": "/d", "data_dirs": ["/d", "/e"]}, "data_dirs must not repeat data_dir"),
        (
            {"master": {"coordination": {"nodes": 1}}},
            "master.coordination: object contains unknown field `nodes`",
        ),
        ({"master": {"coordination": {"nodes_max": 0}}}, "master: coordination.nodes_max must be greater"),
        ({"tablet_server": 7}, "tablet_server: expected `object`, got `int`"),
        (
            {"tablet_server": {"beacon_lease_s": 12.0}},
            "master.detector, with the beacons of tablet_server: grace_s must be at least 1.25 times lease_s",
        ),
    ],
)
def test_a_refusal_names_the_setting_and_the_remedy(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        configure(settings)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- a\n- b\n", "must hold `key: value` settings, not a list"),
        ("a: [", "is not YAML"),
        (None, "cannot read .*ebla.yaml"),
    ],
)
def test_a_file_without_settings_is_refused(tmp_path: Path, text: str | None, words: str) -> None:
    file = tmp_path / "ebla.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(InvalidArgument, match=words):
        read_file(file)
    file.write_text("# nothing yet\n")
    assert read_file(file) == {}


def test_a_configuration_survives_its_file_format() -> None:
    config = configure({"slots": ["a"], "tablet_server": {"heartbeat_s": 0.2}})
    assert msgspec.json.decode(msgspec.json.encode(config), type=DeploymentConfig) == config


def test_a_server_on_a_missing_host_is_expected_if_its_actor_exists() -> None:
    available = Survey((Host("a", "1", "10.0.0.1"), Host("b", "2", "10.0.0.2")))
    config = configure({"data_dir": "/tmp/ebla", "masters": 1, "journals": 1})
    plan = plan_roles(config, Seats(("gone",), ("a", "b", "c", "gone"), ("gone",), in_master=True), "")
    found = [spec.address for spec in expected(plan, available, ["tablet-server/c", "tablet-server/a"])]
    assert found == ["master/0", "tablet-server/a", "tablet-server/b", "tablet-server/c"]


def test_a_deployment_with_logs_has_a_store_and_a_worker_on_every_slot_and_two_auditors() -> None:
    config = configure(
        {"logs": True, "replication_worker": {"bytes_per_s": 1000}, "auditor": {"delay_s": 5.0}}
    )
    seats = Seats(("a",), ("a", "b", "c"), ("a",), in_master=True)
    specs = {spec.address: spec for spec in plan_roles(config, seats, "journal")}
    more = [address for address in specs if not address.startswith(("master", "journal", "tablet-server"))]
    stores = [f"{kind}/{slot}" for slot in "abc" for kind in ("ledger-store", "replication-worker")]
    assert more == [*stores, "auditor/0", "auditor/1"]
    worker, auditor = specs["replication-worker/b"], specs["auditor/1"]
    assert (worker.slot, auditor.slot) == ("b", "b")
    assert isinstance(worker.options, WorkerOptions) and worker.options.store == "ledger-store/b"
    assert isinstance(auditor.options, AuditorOptions) and auditor.options.delay_s == 5.0
    assert worker.options.bytes_per_s == 1000
    assert load(worker.role) is ReplicationWorker and load(auditor.role) is Auditor
    with pytest.raises(InvalidArgument, match=r"auditor.delays is no setting; did you mean auditor.delay_s"):
        configure({"auditor": {"delays": 1}})


def test_shorter_beacons_of_the_servers_need_no_setting_of_the_master() -> None:
    chosen = configure({"tablet_server": {"beacon_s": 0.5, "beacon_lease_s": 2.0}})
    assert chosen.master_options().detector.outlasts(2.0)
