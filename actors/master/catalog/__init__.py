"""The catalog: which tables and tablets exist, in which state, on which servers.

A change is durable in the journal first, then in memory, then answered.

    scribe.py             the one writer of the catalog: decide, make durable, apply, answer
    catalog.py            the catalog in memory, and what each edit does to it
    records.py            records of tables, tablets and requests; the whole catalog as a value
    edits.py              each edit is one fact in the past tense
    quorum_edit_log.py    where edits become durable: a quorum of journal nodes
    checkpoint.py         the whole catalog as of one transaction, so that the log stays short
    directory.py          the master's own directory
    lineage.py            which masters served from a catalog, and how many changes each found
"""
