"""The parts of chaos on real Ray, without a cluster: plans, verdicts, figures, the pulse and failing disks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.chaos import plans
from ebla.chaos.checkers.verdict import Verdict
from ebla.chaos.export import read_json_lines
from ebla.chaos.history import INFO, INVOKE, OK, History
from ebla.chaos.plans import EVERY_HOST, MASTER, NODES, Fault, Plan
from ebla.chaos.ray.clients import Recorded
from ebla.chaos.ray.faults import probes
from ebla.chaos.ray.faults.nemesis import KINDS, misplaced
from ebla.chaos.ray.orders import Judged
from ebla.chaos.ray.pulse import check_pulse
from ebla.chaos.ray.report import figures
from ebla.chaos.ray.report.injection import MISSED, OBSERVED, SKIPPED, UNOBSERVED, VIOLATED, FaultReport
from ebla.chaos.ray.run import Request, Seen, violations, voids
from ebla.chaos.ray.scenarios import (
    BACK_S,
    GONE_S,
    PAUSED_S,
    SCENARIOS,
    plan_of,
    scenario,
    simulated_twin,
)
from ebla.chaos.ray.stage import disk_shim, namespaces
from ebla.chaos.ray.stage.stage import address_of, host_names, host_of, victim_names
from ebla.chaos.runs import plan_of as simulated_plan_of
from ebla.chaos.scenarios import scenarios as simulation
from ebla.chaos.scenarios.pacifica import PREFIX
from ebla.storage.errors import InvalidArgument

FAULT = Fault(1.0, "crash", ("host-2",))


# -- plans on real Ray ---------------------------------------------------------------------------------------


def test_every_simulated_kind_of_fault_is_supported_or_skipped_with_a_reason(tmp_path: Path) -> None:
    assert sorted((*KINDS, *probes.CALLS, *probes.IN_SIMULATION)) == sorted(probes.KINDS)
    simulated = {kind for each in simulation.SCENARIOS.values() for kind in each.mix}
    assert simulated <= set(probes.KINDS)
    faults = [Fault(0.0, kind, ("host-2",)) for kind in (*probes.IN_SIMULATION, "earthquake")]
    with probes.prepared(faults, 3, tmp_path) as prepared:
        reasons = prepared.reasons
    assert {kind: reason.split(":")[0] for kind, reason in reasons.items()} == {
        **dict.fromkeys(probes.IN_SIMULATION, "no such tool"),
        "earthquake": "no such fault",
    }


def test_faults_are_skipped_on_a_machine_without_their_tools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    faults = [Fault(0.0, kind, ("host-2", "host-3")) for kind in ("cut", "full_disk", "crash")]
    with probes.prepared(faults, 4, tmp_path) as prepared:
        assert prepared.reasons["cut"] == "no such tool: ip (iproute2)"
        assert prepared.reasons["full_disk"].startswith("no such tool: a C compiler")
        assert sorted(prepared.reasons) == ["cut", "full_disk"]
        assert prepared.needs.variables() == {}
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with probes.prepared(faults, 4, tmp_path) as prepared:
        assert prepared.reasons["cut"] == "no permission: cutting networks needs root"


def test_a_tool_that_hangs_counts_as_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(words: Sequence[str], **_: object) -> None:
        raise subprocess.TimeoutExpired(words, 3.0)

    monkeypatch.setattr(subprocess, "run", late)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert disk_shim.build(tmp_path) == "the library was not built and tried within 3 s"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert "not done after" in str(namespaces.why_not())


def test_a_plan_of_the_simulation_is_carried_out_on_ray_with_the_same_workloads_and_checkers() -> None:
    for name in ("registers", "bank", "chains"):
        here, there = scenario(name), simulation.SCENARIOS[name]
        assert [type(each) for each in here.workloads()] == [type(each) for each in there.workloads()]
        plan = plans.decode(plans.encode(simulated_plan_of(there, 3)))
        hosts = (*host_names(here.hosts), MASTER)
        assert plan.faults
        for fault in plan.faults:
            assert fault.kind in probes.KINDS
            assert not misplaced(fault, hosts), fault


@settings(deadline=None)
@given(st.sampled_from(sorted(SCENARIOS)), st.integers(0, 10_000), st.integers(4, 8))
def test_a_seed_is_one_plan_that_spares_the_head(name: str, seed: int, hosts: int) -> None:
    plan = plan_of(name, seed, host_names(hosts), 60.0)
    assert plan == plan_of(name, seed, host_names(hosts), 60.0)
    assert bool(plan.faults) == bool(SCENARIOS[name].mix)
    for fault in plan.faults:
        assert fault.kind in probes.KINDS
        if fault.kind in (*NODES, *probes.NETWORK):
            assert fault.where
            assert not {"host-1", "master"} & set(fault.where)


@settings(deadline=None)
@given(st.sampled_from([*sorted(SCENARIOS), "registers"]), st.integers(0, 10_000))
def test_a_host_gets_its_next_fault_after_the_end_of_the_last_one(name: str, seed: int) -> None:
    """Otherwise most faults of a full plan would be missed."""
    hosts = host_names(4)
    busy_until_s = dict.fromkeys((*victim_names(4, logs=True), MASTER), 0.0)
    faults = [each for each in plan_of(name, seed, hosts, 60.0).faults if each.kind in KINDS]
    for fault in faults:
        for host in (*hosts, MASTER) if fault.kind in EVERY_HOST else fault.where:
            assert busy_until_s[host] <= fault.at_s
            busy_until_s[host] = fault.at_s + fault.for_s + BACK_S.get(fault.kind, GONE_S)


def test_faults_with_a_measured_recovery_hit_one_host_after_another() -> None:
    faults = plan_of("kills", 7, host_names(3), 60.0).faults
    assert len(faults) == 5
    assert all(later.at_s - earlier.at_s == SCENARIOS["kills"].every_s for earlier, later in pairwise(faults))
    assert all(len({each.where for each in faults[place : place + 3]}) == 3 for place in range(3))


def test_the_leaders_scenario_hits_servers_and_the_master_alone_and_together() -> None:
    faults = plan_of("pacifica-leaders", 0, host_names(3), 110.0).faults
    hit = [(each.at_s, each.kind, each.where[0]) for each in faults]
    assert hit == [
        (2.0, "crash", "host-1"),
        (22.0, "crash", MASTER),
        (42.0, "pause", "host-3"),
        (62.0, "crash", "host-1"),
        (62.0, "crash", MASTER),
        (82.0, "pause", MASTER),
        (102.0, "pause", "host-3"),
        (102.0, "pause", MASTER),
    ]
    assert {each.for_s for each in faults if each.kind == "pause"} == {PAUSED_S}


def test_the_logs_scenario_hits_every_role_of_logs_and_removes_one_host() -> None:
    faults = plan_of("logs", 0, host_names(4), 240.0).faults
    hit = {(each.kind, *(host.rstrip("-1234") for host in each.where)) for each in faults}
    assert hit == {
        *(("pause", role) for role in ("store", "worker", "auditor")),
        *(("crash", role) for role in ("store", "worker", "auditor", MASTER)),
        *(("node_loss", "host"), ("lose_host", "store"), ("client_pause",), ("client_crash",)),
    }
    (lost,) = (each for each in faults if each.kind == "lose_host")
    assert lost.where != ("store-1",), "its host is the head of the Ray cluster"


def test_roles_of_logs_have_names_in_plans() -> None:
    assert address_of("store-3") == "ledger-store/host-3"
    for name, address in (("worker-2", "replication-worker/host-2"), ("auditor-1", "auditor/0")):
        assert address_of(name) == address and host_of(address) == name
    assert address_of("host-3") == "tablet-server/host-3"
    hit = Fault(1.0, "crash", ("worker",))
    plans.check(Plan("logs", 0, (hit,)), victim_names(4, logs=True))
    with pytest.raises(InvalidArgument, match="there is no host worker"):
        plans.check(Plan("kills", 0, (hit,)), victim_names(4, logs=False))
    with pytest.raises(InvalidArgument, match="only runs on Ray find"):
        simulated_twin(Plan("logs", 0, (hit,), "ray"))


def test_every_scenario_of_ray_can_have_pacifica_tables() -> None:
    for name, each in SCENARIOS.items():
        assert name == "both" or name.startswith(PREFIX) or SCENARIOS[PREFIX + name].mix == each.mix
        assert [each.replication_of(group) for group in (1, 2)] == (
            ["raft", "pacifica"] if name == "both" else [each.replication] * 2
        )


def test_a_scenario_with_partitions_needs_four_hosts() -> None:
    with pytest.raises(InvalidArgument, match="partitions needs 4 hosts, not 3; raise --hosts"):
        plan_of("partitions", 0, host_names(3), 60.0)


# -- when a run counts ---------------------------------------------------------------------------------------

REQUEST = Request("crashes", Path(), Path(), 10.0)
GOOD = Judged("registers-1", "registers-1.jsonl", True, "", (), 100)
HIT = FaultReport(number=0, fault=FAULT, outcome=OBSERVED, at_s=1.0)
MISS, SKIP = (msgspec.structs.replace(HIT, outcome=outcome) for outcome in (MISSED, SKIPPED))


def reasons_of(**changes: object) -> list[str]:
    values: dict[str, object] = {"judged": [GOOD], "faults": (HIT,), "acknowledged": 1000, "others": 10}
    return list(voids(REQUEST, SCENARIOS["crashes"], **{**values, **changes}))  # type: ignore[arg-type]


def test_a_run_with_enough_operations_and_faults_counts() -> None:
    assert reasons_of() == []
    assert reasons_of(faults=(HIT, MISS, SKIP, SKIP)) == []


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"acknowledged": 99}, "99 operations were acknowledged, of at least 100"),
        ({"others": 700}, "1000 of 1700 operations were acknowledged, fewer than 60 %"),
        (
            {"faults": (msgspec.structs.replace(HIT, outcome=UNOBSERVED, reason="it continues"),)},
            "it continues",
        ),
        ({"faults": (MISS,)}, "no fault of the plan was carried out"),
        ({"faults": (SKIP,)}, "no fault of the plan was carried out"),
        ({"faults": (HIT, MISS, MISS)}, "1 of 3 faults had their effect, fewer than half"),
        (
            {"never": ["bank-1.transfer was asked 40 times and never carried out"]},
            "bank-1.transfer was asked",
        ),
        ({"judged": []}, "nothing was judged"),
        ({"judged": [msgspec.structs.replace(GOOD, valid=None, problem="undecided")]}, "undecided"),
    ],
)
def test_a_run_without_enough_evidence_is_void(changes: dict[str, object], why: str) -> None:
    found = reasons_of(**changes)
    assert any(why in reason for reason in found), found
    assert all(reason.startswith("void: ") for reason in found)


def test_a_broken_promise_and_an_unanswered_operation_are_violations() -> None:
    bad = msgspec.structs.replace(GOOD, valid=False, problem="key 3: a stale read")
    seen = Seen(problems=["bank-1 client 2 was not answered"], judged=[GOOD, bad])
    assert list(violations(seen)) == ["bank-1 client 2 was not answered", "registers-1: key 3: a stale read"]
    assert list(violations(Seen(judged=[GOOD], faults=[HIT]))) == []
    believed = msgspec.structs.replace(HIT, outcome=VIOLATED, reason="it serves again")
    assert list(violations(Seen(judged=[GOOD], faults=[believed]))) == [
        "at   1.00 s: crash host-2: it serves again"
    ]


# -- figures -------------------------------------------------------------------------------------------------


def test_a_recovery_lasts_until_every_led_tablet_is_written_again() -> None:
    pulse = {0: [9.9, 10.0, 11.5, 11.6], 1: [9.95, 10.05, 12.25, 12.3], 2: [9.9, 20.0]}
    assert figures.recovery_s(pulse, [0, 1], 10.02) == 2.23
    assert figures.recovery_s(pulse, [0], 10.02) == 1.48
    assert figures.recovery_s(pulse, [], 10.02) is None
    assert figures.recovery_s({0: [9.9, 10.0]}, [0], 10.02) is None, "no write after the fault"
    late = {0: [10.0, 10.05, 12.0, 14.5, 14.6]}
    assert figures.recovery_s(late, [0], 10.02, seen_s=11.5) == 4.48, (
        "the recovery begins when the role has ended"
    )
    calm = {0: [9.9, 10.1, 11.2, 11.9, 12.2, 12.3]}
    assert figures.recovery_s(calm, [0], 10.02, seen_s=12.0) == 1.18, "no outage of a second began later"
    assert figures.recovery_s({0: [10.0, 10.1, 11.9, 12.0]}, [0], 10.02, seen_s=12.0) == 1.88


@settings(deadline=None)
@given(st.lists(st.floats(0, 100), max_size=50), st.floats(1, 99))
def test_windows_are_the_times_without_an_acknowledged_write(times: list[float], ended: float) -> None:
    found = figures.windows(sorted(times), 0.0, ended)
    for window in found:
        began, over = window.began_s, window.began_s + window.length_s
        assert window.length_s >= figures.WINDOW_S - 1e-3
        assert not [time for time in times if began + 2e-3 < time < over - 2e-3 and time < ended]
    assert sum(window.length_s for window in found) <= ended + 0.1


def fault(
    number: int, at_s: float, undone_s: float, kind: str = "crash", where: str = "host-2", *led: int
) -> FaultReport:
    """One that was observed; it led tablet 0 by default."""
    hit = Fault(at_s, kind, (where,))
    return FaultReport(
        number=number, fault=hit, outcome=OBSERVED, at_s=at_s, undone_s=undone_s, led=led or (0,)
    )


def test_overlapping_faults_do_not_count_as_alone() -> None:
    pulse = {0: [float(second) for second in range(60)]}
    faults = [fault(0, 5.0, 8.0), fault(1, 7.0, 9.0), fault(2, 20.0, 21.0), fault(3, 30.0, 31.0, "lose_disk")]
    found = figures.with_figures([*faults, fault(4, 40.0, 41.0)], pulse, {"pulse": pulse[0]})
    assert [each.alone for each in found] == [False, False, True, False, False]
    assert figures.recoveries(found)["crash"].faults == 1
    assert found[2].windows == {"pulse": 1.0}


def test_faults_of_one_moment_have_one_recovery() -> None:
    later = [25.1, 30.0, 35.0, 39.9, 40.1]
    pulse = {0: [19.9, 22.0, 25.0, *later], 1: [19.9, 21.0, 23.0, 24.0, 25.0, *later]}
    both = fault(0, 20.0, 24.0, "crash", "host-1", 1), fault(1, 20.0, 24.0, "crash", MASTER, 0, 1)
    alone = fault(2, 40.0, 40.0, "crash", MASTER)
    found = figures.with_figures([*both, alone], pulse, {})
    assert all(each.alone for each in found)
    lasted = {kind: (each.faults, each.max_s) for kind, each in figures.recoveries(found).items()}
    assert lasted == {"crash + crash master": (1, 5.0), "crash master": (1, 0.1)}


def test_operations_are_counted_by_the_second_of_their_answer() -> None:
    history = History()
    for process, end in enumerate((OK, INFO, OK)):
        history.note(0.5, process, INVOKE, "write", 1, 1)
        history.note(1.5, process, end, "write", 1, 1)
    assert figures.per_second([history], 2.0) == (figures.Second(0, 0, 0), figures.Second(2, 0, 1))


# -- the pulse -----------------------------------------------------------------------------------------------


def pulse_of(*events: tuple[int, str, str, int]) -> Verdict:
    history = History()
    for process, kind, operation, number in events:
        history.note(0.0, process, kind, operation, 0, number)
    return check_pulse(history)


def test_the_last_read_must_be_the_last_acknowledged_write() -> None:
    writes = (0, INVOKE, "write", 1), (0, OK, "write", 1), (0, INVOKE, "write", 2), (0, OK, "write", 2)
    read = (1, INVOKE, "read", 0)
    assert pulse_of(*writes, read, (1, OK, "read", 2)).valid
    lost = pulse_of(*writes, read, (1, OK, "read", 1))
    assert lost.valid is False
    assert "holds 1, neither 2" in lost.problem
    assert pulse_of(read, (1, INFO, "read", 0)).valid is None


def test_a_write_of_unknown_outcome_may_be_applied_after_later_ones() -> None:
    unknown = (0, INVOKE, "write", 1), (0, INFO, "write", 1)
    known = (1, INVOKE, "write", 2), (1, OK, "write", 2)
    read = (2, INVOKE, "read", 0)
    assert pulse_of(*unknown, *known, read, (2, OK, "read", 1)).valid
    assert pulse_of(*unknown, *known, read, (2, OK, "read", 2)).valid
    assert pulse_of(*unknown, *known, read, (2, OK, "read", 0)).valid is False


def test_a_history_is_on_disk_before_the_next_event(tmp_path: Path) -> None:
    history = Recorded(tmp_path / "bank-1.jsonl")
    history.note(1.0, history.new_process(), INVOKE, "read-bank", None, None)
    history.note(1.5, 0, OK, "read-bank", None, {0: 100, 1: 100})
    assert read_json_lines(history.path.read_text()).events == history.events


# -- disks that fail on command ------------------------------------------------------------------------------

VICTIM = """
import os, sys
print(os.getpid(), flush=True)
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
for line in sys.stdin:
    try:
        os.pwrite(file, b"x" * 4096, int(line))
        os.fsync(file)
        print("done", flush=True)
    except OSError as error:
        print(error.strerror, flush=True)
"""


def test_a_disk_fails_only_in_the_armed_process_and_in_the_armed_way(tmp_path: Path) -> None:
    shim = disk_shim.build(tmp_path / "shim")
    if isinstance(shim, str):
        assert shim.startswith("no such tool")
        return
    with subprocess.Popen(
        [sys.executable, "-c", VICTIM, str(tmp_path / "file")],
        env={**os.environ, **shim.environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as victim:
        assert victim.stdin is not None
        assert victim.stdout is not None
        pid = int(victim.stdout.readline())

        def write(offset: int) -> str:
            assert victim.stdin is not None
            assert victim.stdout is not None
            print(offset, file=victim.stdin, flush=True)
            return victim.stdout.readline().strip()

        assert (write(1 << 20), shim.hits(pid)) == ("done", 0)
        shim.arm(pid + 1, "full_disk")
        assert write(1 << 20) == "done", "another process is armed"
        shim.arm(pid, "full_disk")
        assert (write(1 << 20), write(0)) == ("No space left on device", "done")
        shim.arm(pid, "fail_sync", 1)
        assert (write(0), write(0)) == ("Input/output error", "done")
        shim.arm(pid, "slow_disk", 1000)
        assert (write(0), shim.hits(pid)) == ("done", 3)
        shim.disarm(pid)
        assert (write(1 << 20), shim.hits(pid)) == ("done", 3)
