"""The names of all fault points and marks, so that a run can list those it never reached.

A fault point is before or after a durable step; a simulated node may be crashed there. A mark is a rare path that was
taken. Both call the world (`Faults` in actors/world.py); a test compares this list with the code.
"""

from __future__ import annotations


def _edits(*changes: str) -> tuple[str, ...]:
    """The points around the edits of these changes of the master's catalog."""
    return _around("master", "edit", *changes)


def _around(role: str, step: str, *acts: str) -> tuple[str, ...]:
    return tuple(f"{role}.{act}.{side}_{step}" for act in acts for side in ("before", "after"))


MASTER_POINTS = (
    "master.format.before_mark",
    *_edits("begin", "create_table", "drop_table", "report", "assign", "forget"),
    *_around("master", "commit", "incarnations"),
    "master.checkpoint.before_save",
    "master.checkpoint.before_purge",  # and after the save
    "master.checkpoint.after_purge",
    "master.create_tablet.before_rpc",
    "master.delete_tablet.before_rpc",
)

# Of a master with a used namespace.
NAMESPACE_POINTS = _edits("open_session", "close_session", "expire_session", "change_nodes")

TABLET_POINTS = (
    "tablet.create.before_consensus",
    "tablet.create.before_data",
    "tablet.create.before_superblock",
    "tablet.create.after_superblock",
    "tablet.delete.before_mark",
    "tablet.delete.after_mark",
    "tablet.delete.after_data",
    "tablet.delete.after_log",
    "tablet.delete.after_consensus",
    "tablet.delete.after_superblock",
    *_around("tablet", "mark", "abandon"),
    *_around("tablet", "commit", "hard_state", "log", "flush"),
    *_around("tablet", "trim", "shared_log"),
    *_around("tablet", "commit", "incarnations", "catalog_version"),
    *_around("tablet", "raise", "seqno"),
    *_around("tablet", "mark", "old_copy"),
    "tablet.private_log.before_extend",
    *_around("tablet", "trim", "private_log"),
)

POINTS = MASTER_POINTS + TABLET_POINTS  # of a deployment with one master

COMPACTION_POINTS = _around("tablet", "commit", "compaction")  # of tablets whose rows are columns

GROUP_POINTS = (  # of one master of several, beside those above
    "master.standby.before_save",
    "master.standby.after_save",
    "master.take_over.before_epoch",
    "master.take_over.after_epoch",
    "master.hand_over.before_release",
    "master.hand_over.after_release",
)

GROWTH_POINTS = (  # of a journal that grows from one node to several, which happens once
    *_edits("grow"),
    *_around("master", "commit", "grow"),
    *_around("journal", "commit", "grow", "asks", "admitted"),
)
JOIN_POINTS = _around("journal", "commit", "join", "admit")  # of the nodes that join it

ALTER_POINTS = (  # where tables are dropped, recalled or altered
    *_edits("alter_table", "recall_table", "end_reserve"),
    "master.alter_tablet.before_rpc",
    "tablet.alter.before_entry",
)

REPAIR_POINTS = (  # where replicas are deleted to tombstones, and copied
    "tablet.entomb.before_mark",
    "tablet.entomb.after_mark",
    "tablet.entomb.after_data",
    "tablet.copy.before_mark",
    "tablet.copy.after_mark",
    "tablet.copy.after_consensus",
    "tablet.copy.after_data",
    "tablet.copy.before_commit",
    "tablet.copy.after_commit",
    "tablet.copy.before_ready",
    "tablet.copy.after_ready",
    "tablet.copy.before_undo",
    "tablet.start.before_undo",
)
MEMBER_POINTS = (  # where members of tablets change
    *_edits("drain", "maintain", "suspend", "forget_server", "level"),
    "master.repair_tablet.before_rpc",
    "master.tombstone_tablet.before_rpc",
)

PACIFICA_POINTS = (*_edits("appoint"), "master.appoint.before_rpc")  # where primaries are appointed

FORCED_POINTS = _edits("force")  # where an operator forces a configuration on a PacificA tablet

STEP_POINTS = (  # between two consecutive durable steps
    "tablet.private_log.after_extend",
    "tablet.entomb.after_quarantine",
    *_around("tablet", "commit", "tombstone_vote"),
)

JOURNAL_POINTS = (
    *_around("journal", "commit", "format", "rejoin", "whole", "promise", "lease", "prepare", "copy"),
    *_around("journal", "commit", "accept", "start", "edits", "finalize", "heartbeat", "purge", "learn"),
)

LEDGER_POINTS = _around(
    "ledger", "commit", "add", "recovery_add", "fence", "move", "delete"
)  # of stores of ledgers

REPAIR_OF_LEDGERS_POINTS = (  # of replication workers and auditors, and of stores that they ask
    *_around("ledger", "commit", "drop"),
    "ledger.repair.before_move",
    "ledger.repair.after_move",
    "ledger.repair.before_recover",
    "ledger.repair.after_recover",
    "ledger.repair.before_unmark",
    "ledger.repair.after_unmark",
    "ledger.audit.before_marks",
    "ledger.audit.after_marks",
)

ALL_POINTS = (
    POINTS
    + STEP_POINTS
    + ALTER_POINTS
    + REPAIR_POINTS
    + MEMBER_POINTS
    + COMPACTION_POINTS
    + PACIFICA_POINTS
    + FORCED_POINTS
    + GROUP_POINTS
    + GROWTH_POINTS
    + JOIN_POINTS
    + NAMESPACE_POINTS
    + JOURNAL_POINTS
    + LEDGER_POINTS
    + REPAIR_OF_LEDGERS_POINTS
)

MARKS = (
    "tablet.flush.replica_gone",
    "tablet.maintenance.disk_full",
    "tablet.compaction.disk_full",
    "tablet.hard_state.disk_full",
    "tablet.log.disk_full",
    "tablet.heartbeat.failed",
    "tablet.beacon.withheld",
    "master.detector.died",
    "tablet.start.wanted",
    "tablet.peer_ended",
    "tablet.liveness.silent",
    "tablet.liveness.late",
    "tablet.liveness.restarted",
    "tablet.liveness.leader_woke",
    "tablet.liveness.woken",
    "tablet.liveness.unwanted",
    "tablet.liveness.returned",
    "tablet.liveness.refused",
    "tablet.copy.chunk_lost",
    "tablet.copy.session_ended",
)
