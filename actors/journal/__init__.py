"""The quorum journal: an ordered log of edits on an odd number of nodes, with one writer at a time.

Epochs fence older writers.

docs/journal.md describes the protocol.

    node/          the journal node: what it accepts, stores and promises
    writer/        the other side: writing, reading and recovering a journal at a majority of its nodes
    messages.py    every message of the journal
    records.py     what a node stores, with checksums
    quorum.py      ask all nodes and continue with the answers of a majority
    options.py     settings of nodes, writers and readers
    errors.py      the errors, and what the caller does next
"""
