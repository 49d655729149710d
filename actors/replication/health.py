"""The states of a replica, as its server reports them, and how a leader sees a peer."""

from __future__ import annotations

# States of a replica, as its server reports them. Only `running` serves. `deleted` is a tombstone;
# it votes by the last position of its log, and so does `copying`.
RUNNING, FAILED, COPYING, DELETED = "running", "failed", "copying", "deleted"

DOES_NOT_EXIST = "does_not_exist"

# A peer as its leader sees it.
HEALTHY, UNKNOWN, SILENT, UNHEALTHY, LOST = "healthy", "unknown", "silent", "unhealthy", "lost"


# Why a server cannot answer for a replica: the values of EnvelopeReply.refusals, and WRONG_SERVER.
TABLET_NOT_FOUND, TABLET_DELETED, TABLET_COPYING = "tablet_not_found", "tablet_deleted", "tablet_copying"

COPY_STALLED = "copy_stalled"  # its copy has made no progress for long

REPLICA_FAILED, DAMAGED, NOT_RUNNING = "replica_failed", "damaged", "not_running"

VOTES_FORGOTTEN = "votes_forgotten"  # the replica failed, and its record of votes is lost

HELD_BACK = "held_back"  # its disk hangs and its memory is full: it accepts heartbeats only

WRONG_SERVER = "wrong_server"
