"""The stream of entries from a leader to the other members: the same in every replication protocol.

    limits.py      how much may be under way, and how often a leader shows that it lives
    plan.py        the plan of one message with entries
    progress.py    a leader's knowledge of one peer, and when the next message to it is due
    peers.py       a leader's knowledge of all its peers, and the next messages
    matching.py    how a member compares a leader's message with its log
    member.py      what every core has: a log, configurations, a commit index, effects, a story
    member_changes.py  the checks of a request that changes members

A protocol decides who leads in which term, when an entry is committed, and who may be read. PacificA's
prepare is the same message as Raft's append: a member accepts a leader's entries only after the
predecessor that both have, and a new leader's log replaces the members' uncommitted entries.

Sources: Raft paper, 5.3; PacificA paper, 3.3; Kudu's consensus.
"""
