"""Raft, one implementation of the engine's `GroupCore`.

The core is a state machine without clock, disk, network or waiting: events go in as method calls,
and `take()` returns their effects. tests/scenarios/*.txt shows examples. Only members.py waits.

    core.py          the events, in the order of a replica's life
    state.py         the roles, and the steps from one to another
    election.py      when to campaign, and whom to vote for
    leadership.py    a leader's knowledge: its peers, its lease, a transfer
    membership.py    the rules by which one configuration may follow another
    forced.py        the two sides of a forced configuration
    tombstone.py     how a replica without a log votes
    events.py        limits
    parts.py         makes cores and voters for the tablet server
    members.py       changes of members by the leader, and forced configurations by a survivor
"""
