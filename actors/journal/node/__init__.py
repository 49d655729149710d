"""The journal node: the role that keeps copies of journals.

node.py        the role and its calls
journal.py     one journal on one node: makes the decisions of rules.py durable, one after the other
rules.py       what a node accepts, decided without waiting
lease.py       what a node promises to the holder of the lease
sync.py        catching up: fetches missing finalized segments from peers
growth.py      a journal grows from one node to several
rejoin.py      how a node whose directory was lost becomes a member again
measures.py    the figures of a node
"""
