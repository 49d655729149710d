"""The quorum journal: an ordered log of edits on an odd number of nodes, with one writer at a time.

Epochs fence older writers.

docs/journal.md describes the protocol.

    node/          the journal node: its rules, its storage, its promises
    writer/        the other side: writes, reads and recovers a journal at a majority of its nodes
    messages.py    the messages of the journal
    records.py     the records on a node's disk, with checksums
    quorum.py      ask all nodes and continue with the answers of a majority
    options.py     settings of nodes, writers and readers
    errors.py      the errors, and what the caller does next
"""
