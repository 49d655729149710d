"""The journal node: the role that keeps copies of journals.

node.py        the role and its calls
journal.py     one journal on one node: makes the decisions of rules.py durable, one after the other
rules.py       decides what a node accepts, without waiting
lease.py       the node's promise to the holder of the lease
sync.py        catching up: fetches missing finalized segments from peers
growth.py      the rules for the growth of a journal from one node to several
admissions.py  the requests by which the new nodes of a grown journal begin to count
rejoin.py      the return of a node that lost its directory
measures.py    the figures of a node, and the status of its journals
"""
