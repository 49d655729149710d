"""`ebla autorecovery` in a deployment with ledger stores."""

from __future__ import annotations

from ebla.actors.ledger.auditor.auditor import Auditor
from ebla.actors.ledger.auditor.options import AuditorOptions
from ebla.actors.ledger.shared.repairs import Tally
from ebla.actors.ledger.worker.worker import ReplicationWorker
from ebla.cli.logs.autorecovery import _copies
from tests.cli.stage import Cli, LogStage


def test_the_status_shows_switches_and_stores(stored: Cli) -> None:
    shown = stored("autorecovery status")
    assert shown.status == 0
    assert "repairs enabled" in shown.text and "stores 4 of 4 stores run" in shown.text
    assert "to repair 0 ledgers" in shown.text and "auditor none" in shown.text
    document = stored("autorecovery status --json").json
    assert document["enabled"] and len(document["running"]) == 4 and document["marked"] == []


def test_a_marked_ledger_is_shown_with_the_reason_why_it_is_not_whole(stored: Cli) -> None:
    async def prepare(stage: LogStage) -> None:
        log = await stage.log(ensemble=4, write_quorum=4, ack_quorum=2)
        ledger = (await log._ledgers.log("events")).ledgers[0].ledger
        lost = stage.store("host-b").instance.uuid
        stage.cluster.crash("ledger-store/host-b")
        await log._ledgers.registry.mark(ledger, lost, lost=True)
        await stage.cluster.start("replication-worker/host-a", ReplicationWorker)
        await stage.db._client.world.clock.sleep(40.0)

    shown = stored("autorecovery status", prepare=prepare)
    assert "to repair 1 ledger" in shown.text and "ledgers to repair:" in shown.text
    assert "host-b" in shown.text and "stores that do not run:" in shown.text
    assert "3 of 4 stores run" in shown.text


def test_repairs_are_switched_off_and_on(stored: Cli) -> None:
    async def disable(stage: LogStage) -> None:
        assert stage.db is not None
        from ebla.actors.ledger.shared.repairs import Repairs

        await Repairs(stage.db._logs.session).disable()

    assert "are disabled; `ebla autorecovery enable`" in stored("autorecovery disable").text
    again = stored("autorecovery disable", prepare=disable)
    assert again.status == 1 and "disabled already" in again.message
    assert stored("autorecovery enable", prepare=disable).text == "repairs of ledgers are enabled"
    assert stored("autorecovery enable").status == 1
    assert "repairs disabled" in stored("autorecovery status", prepare=disable).text


def test_the_delay_is_shown_and_set_and_an_audit_is_triggered(stored: Cli) -> None:
    assert "the auditor's own delay holds" in stored("autorecovery delay").text
    assert stored("autorecovery delay 30 --json").json == {"delay_s": 30.0}
    assert stored("autorecovery delay -- -1").status == 2
    assert stored("autorecovery trigger").status == 0


def test_the_status_shows_the_copies_that_the_last_check_has_counted(stored: Cli) -> None:
    async def prepare(stage: LogStage) -> None:
        await stage.log()
        await stage.cluster.start("auditor/0", lambda world: Auditor(world, AuditorOptions(check_s=5.0)))
        await stage.db._client.world.clock.sleep(30.0)

    shown = stored("autorecovery status", prepare=prepare)
    assert "copies as of that check complete in 1 of 1 closed ledger" in shown.text
    few = Tally(12, below_write=3, below_ack=2, without=1, unknown=4)
    assert _copies(few) == (
        "complete in 9 of 12 closed ledgers; fewer than the ack quorum in 2; none of an entry in 1; stores of 4 did not answer"
    )
