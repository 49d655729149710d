"""The catalog: the tables and tablets that exist, with their states and servers.

A change is durable in the journal first, then in memory, then answered.

    scribe.py             the one writer of the catalog: decide, make durable, apply, answer
    catalog.py            the catalog in memory, and the effect of each edit
    invariants.py         what holds for every catalog
    members.py            the members of its tablets, by server and by table
    records.py            records of tables, tablets and requests; the whole catalog as a value
    edits.py              the edits: each is one fact in the past tense
    quorum_edit_log.py    makes edits durable at a quorum of journal nodes
    checkpoint.py         the whole catalog as of one transaction, so that the log stays short
    directory.py          the master's own directory
    lineage.py            the masters that served from a catalog, and how many changes each found
"""
