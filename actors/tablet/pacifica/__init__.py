"""PacificA, one implementation of the engine's `GroupCore`: the master appoints the primary, and an entry is committed
when every member holds it.

The core is a state machine without clock, disk, network or waiting, like Raft's. Its entries travel by `stream/`.

    core.py        the events: the master's orders, the primary's verbs, messages of members
    state.py       the state, when it commits, and the steps from one role to another
    primary.py     a primary's knowledge in one ballot: who must hold an entry, and who does not keep up
    older_copy.py  what shows that a directory is an older copy
    limits.py      times
    parts.py       makes cores for the tablet server, and memories of replicas without a log; changes members
    leasing.py     the server's beacons, and its leases
    orders.py      the master's orders to this server, and its requests to the master

What is promised, and why it holds:

    one primary a ballot     The master makes every configuration durable before a server gets it, with a ballot that it
                             never used before. A replica leads each ballot at most once: after a restart, or a lease
                             that ended, it waits for another.
    committed is on all      A primary commits what all voters hold durably. While it asks the master for another
                             configuration, all voters of both count. So every voter in the catalog has every
                             committed entry, and the master may appoint any of them. No vote is needed.
    current reads            A primary serves reads while its server's lease holds, and once its inherited entries are
                             committed and all voters that answer have taken its first own entry. The master appoints another only when that lease is over, or when the primary
                             has stepped down by itself and asked for it.
    never below the minimum  No change leaves fewer voters than `min_members`: if too many do not answer, the primary
                             stops committing instead. So what is acknowledged is on that many disks, and the death of
                             the primary then leaves others that may follow it.
    no older copy leads      A log that lacks committed entries is recognised by the ballot that all voters held, by what a
                             primary has committed, and by a member that has committed what a new primary lacks: that
                             member takes nothing from it, and the primary steps down for another voter.

Where this differs from Pegasus, and why:

    Proposals are not frozen during a change; the joint rule of commits makes that unnecessary.
    Learners are in the master's configuration, as pre-voters: the next primary and the master know them.
    A secondary that does not answer becomes a learner by the same change that takes its vote. When it returns it
    catches up and counts again, without the master's cure.

Sources: seed 001; the PacificA paper; Pegasus.
"""
