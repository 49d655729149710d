"""Raft, one implementation of the engine's `GroupCore`.

The core is a state machine without clock, disk, network or waiting: events go in as method calls, and `take()` returns what
is to be done. tests/scenarios/*.txt shows it act. Only members.py waits.

    core.py          the events, in the order of a replica's life
    state.py         the roles, and the steps from one to another
    election.py      when to campaign, and whom to vote for
    leadership.py    what a leader knows: its peers, its lease, a transfer
    progress.py      what a leader knows of one peer, and what it may send next
    matching.py      how a follower compares a leader's message with its log
    membership.py    which configuration may follow which
    forced.py        the two sides of a forced configuration
    tombstone.py     how a replica without a log votes
    events.py        limits, and plans of messages
    parts.py         makes cores and voters for the tablet server
    members.py       changes of members by the leader, and forced configurations by a survivor
"""
