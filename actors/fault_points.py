"""The names of all fault points and marks, so that a run can list those it never reached.

A fault point is before or after a durable step; a simulated node may be crashed there. A mark is a rare path that was
taken. Both call the world (`Faults` in actors/world.py); a test compares this list with the code.
"""

from __future__ import annotations

CHANGES = ("create_table", "drop_table", "report", "assign", "forget")  # of the master's catalog

MASTER_POINTS = (
    "master.format.before_mark",
    "master.begin.before_edit",
    "master.begin.after_edit",
    *(f"master.{change}.{side}_edit" for change in CHANGES for side in ("before", "after")),
    "master.incarnations.before_commit",
    "master.incarnations.after_commit",
    "master.checkpoint.before_save",
    "master.checkpoint.before_purge",  # and after the save
    "master.checkpoint.after_purge",
    "master.create_tablet.before_rpc",
    "master.delete_tablet.before_rpc",
)

NAMESPACE_CHANGES = ("open_session", "close_session", "expire_session", "change_nodes")
NAMESPACE_POINTS = tuple(  # of a master with a used namespace
    f"master.{change}.{side}_edit" for change in NAMESPACE_CHANGES for side in ("before", "after")
)

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
    "tablet.abandon.before_mark",
    "tablet.abandon.after_mark",
    "tablet.hard_state.before_commit",
    "tablet.hard_state.after_commit",
    "tablet.log.before_commit",
    "tablet.log.after_commit",
    "tablet.flush.before_commit",
    "tablet.flush.after_commit",
    "tablet.shared_log.before_trim",
    "tablet.shared_log.after_trim",
    "tablet.incarnations.before_commit",
    "tablet.incarnations.after_commit",
    "tablet.catalog_version.before_commit",
    "tablet.catalog_version.after_commit",
    "tablet.seqno.before_raise",
    "tablet.seqno.after_raise",
    "tablet.old_copy.before_mark",
    "tablet.old_copy.after_mark",
    "tablet.private_log.before_extend",
    "tablet.private_log.before_trim",
    "tablet.private_log.after_trim",
)

POINTS = MASTER_POINTS + TABLET_POINTS  # of a deployment with one master

GROUP_POINTS = (  # of one master of several, beside those above
    "master.standby.before_save",
    "master.standby.after_save",
    "master.take_over.before_epoch",
    "master.take_over.after_epoch",
    "master.hand_over.before_release",
    "master.hand_over.after_release",
)

GROWTH_POINTS = (  # of a journal that grows from one node to several, which happens once
    "master.grow.before_edit",
    "master.grow.after_edit",
    "master.grow.before_commit",
    "master.grow.after_commit",
    *(
        f"journal.{commit}.{side}_commit"
        for commit in ("grow", "asks", "admitted")
        for side in ("before", "after")
    ),
)
JOIN_POINTS = tuple(  # of the nodes that join it
    f"journal.{commit}.{side}_commit" for commit in ("join", "admit") for side in ("before", "after")
)

ALTER_POINTS = (  # where tables are dropped, recalled or altered
    *(
        f"master.{change}.{side}_edit"
        for change in ("alter_table", "recall_table", "end_reserve")
        for side in ("before", "after")
    ),
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
    *(
        f"master.{change}.{side}_edit"
        for change in ("drain", "maintain", "forget_server")
        for side in ("before", "after")
    ),
    "master.repair_tablet.before_rpc",
    "master.tombstone_tablet.before_rpc",
)

PACIFICA_POINTS = (  # where primaries are appointed
    "master.appoint.before_edit",
    "master.appoint.after_edit",
    "master.appoint.before_rpc",
)

STEP_POINTS = (  # between two consecutive durable steps
    "tablet.private_log.after_extend",
    "tablet.entomb.after_quarantine",
    "tablet.tombstone_vote.before_commit",
    "tablet.tombstone_vote.after_commit",
)

JOURNAL_COMMITS = (
    "format",
    "rejoin",
    "whole",
    "promise",
    "lease",
    "prepare",
    "copy",
    "accept",
    "start",
    "edits",
    "finalize",
    "heartbeat",
    "purge",
    "learn",
)
JOURNAL_POINTS = tuple(
    f"journal.{commit}.{side}_commit" for commit in JOURNAL_COMMITS for side in ("before", "after")
)

ALL_POINTS = (
    POINTS
    + STEP_POINTS
    + ALTER_POINTS
    + REPAIR_POINTS
    + MEMBER_POINTS
    + PACIFICA_POINTS
    + GROUP_POINTS
    + GROWTH_POINTS
    + JOIN_POINTS
    + NAMESPACE_POINTS
    + JOURNAL_POINTS
)

MARKS = (
    "tablet.flush.replica_gone",
    "tablet.maintenance.disk_full",
    "tablet.hard_state.disk_full",
    "tablet.log.disk_full",
    "tablet.heartbeat.failed",
    "tablet.beacon.withheld",
    "tablet.copy.chunk_lost",
    "tablet.copy.session_ended",
)
