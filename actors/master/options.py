"""Settings of a master. Times are in seconds; tests use small ones."""

from __future__ import annotations

import msgspec

from ebla.actors.coordination.limits import Limits
from ebla.actors.detector.limits import DetectorLimits
from ebla.actors.journal.options import JournalNodeOptions, JournalOptions, LeaseLimits
from ebla.storage.errors import InvalidArgument, require_positive

RESERVE_S_MAX = 10 * 366 * 24 * 3600.0


class MasterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the active master.

    `unresponsive_s`: a server that is silent for this long gets no new replicas. `assignment_timeout_s`: a
    tablet that its servers have not created by then is replaced by a new one (Kudu's
    tablet_creation_timeout).

    `settle_s`: how long a restarted master waits for the servers' heartbeats before it places tablets.

    `forget_min_s`: how long a dropped or replaced tablet is remembered after every server confirmed that
    its replica is gone, because a request to create one may still be under way. `forget_max_s`: after this
    time the tablet is forgotten although a server never answered; should that server ever return, its
    replica is unknown, and unknown replicas are left alone.

    `tables_max`: includes kept tables. `replicas_per_server_max`: replicas of a new table, on average over
    the live servers; `replicas_of_server_max`: the same for all tables together. With 4,000 on each of three servers that shared
    two cores, the death of one cost writers of other tablets about a second, with 10,000 it cost 20 s (docs/operations.md).

    `replicas_coming_max`: replicas on their way to one server, at least 2; further repairs that need it wait (repair/repairs.py). If
    they are small, it copies 32 of them in some seconds.

    `reserve_s`: for how long a dropped table can be recalled if the drop does not say so (0: the table is
    removed at once).

    `detector`: when a server's PacificA replicas are taken away; `lease_s` and `beacon_s` must be those of the
    servers.

    `live_servers_min`, `live_servers_share`: with fewer live servers, or a smaller share of those that should be there, the
    cluster is frozen (cluster/levels.py). A cluster of three must cure after the loss of one (Pegasus: 3 servers, and a share
    of 0.65, 0.5 in its example); a cluster of fewer servers than the number needs all of them.

    `accepts`: tokens of masters whose changes this catalog may lack; the refusal of an older copy names
    them. While there are any, no tablet is replaced because it is late, and no reserve ends. A token that is new to the catalog
    is recorded there, and puts all PacificA tablets in doubt (pacifica/doubts.py), whatever the setting says later.
    """

    bg_s: float = 0.5
    unresponsive_s: float = 10.0
    assignment_timeout_s: float = 30.0
    settle_s: float = 2.0
    rpc_timeout_s: float = 10.0
    rpc_backoff_s: float = 0.1
    rpc_backoff_max_s: float = 10.0
    rpcs_max: int = 32
    rpcs_per_server_max: int = 8
    changes_waiting_max: int = 1000
    tables_max: int = 10_000
    tablets_per_table_max: int = 10_000
    replicas_per_server_max: int = 200
    replicas_of_server_max: int = 4_000
    replicas_coming_max: int = 32
    checkpoint_edits: int = 1000
    forget_min_s: float = 300.0
    forget_max_s: float = 7 * 24 * 3600.0
    coordination: Limits = Limits()
    reserve_s: float = 0.0
    accepts: tuple[str, ...] = ()
    detector: DetectorLimits = DetectorLimits()
    live_servers_min: int = 2
    live_servers_share: float = 0.5

    def validate(self) -> None:
        self.coordination.validate()
        self.detector.validate()
        if not 0 <= self.reserve_s <= RESERVE_S_MAX:
            raise InvalidArgument(f"reserve_s must be 0 to {RESERVE_S_MAX:g}, not {self.reserve_s}")
        if self.live_servers_share > 1:
            raise InvalidArgument(f"live_servers_share must be 1 at most, not {self.live_servers_share:g}")
        if self.replicas_coming_max < 2:
            raise InvalidArgument(f"replicas_coming_max must be 2 at least, not {self.replicas_coming_max}")
        require_positive(self, (name for name in self.__struct_fields__ if name != "reserve_s"))


class GroupOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one of several masters.

    `masters`: the addresses of all masters. `journal`: the journal of their edits; its nodes may have
    changed since (`NodesMoved`). `master`: the settings of the active master. `node`: the options of the
    journal node that this master hosts, if its address is one of the journal's nodes.

    `look_s`: how often a standby checks whether the lease is free. `tail_s`: how often a standby reads the
    edits of the active master. `purge_s`: how often the active master purges edits that two masters have
    in a checkpoint, or only itself if its directory holds the whole journal. `hand_over_s`: how long a
    hand-over waits for changes under way, and then for the successor. `grow_s`: how long new journal nodes
    may take to fetch the journal.
    """

    masters: tuple[str, ...]
    journal: JournalOptions
    lease: LeaseLimits = LeaseLimits()
    master: MasterOptions = MasterOptions()
    look_s: float = 0.2
    tail_s: float = 0.5
    node: JournalNodeOptions = JournalNodeOptions()
    purge_s: float = 30.0
    rpc_timeout_s: float = 3.0
    hand_over_s: float = 10.0
    grow_s: float = 120.0

    def validate(self) -> None:
        if len(set(self.masters)) < len(self.masters) or not self.masters:
            raise InvalidArgument(f"a group has one master at least, each once, not {self.masters}")
        self.journal.validate()
        self.node.validate()
        self.lease.validate()
        self.master.validate()
        require_positive(self, self.__struct_fields__)
