"""Requests of clients and peer servers to replicas.

admission.py      the checks before a request reaches a replica
scans.py          snapshot scans, block by block
checksums.py      digests of replicas at one log index
alterations.py    alterations, drops and recalls of the table on their way into the tablet's log
handing_over.py   hands leaderships over: one, or all when the server stops
client_verbs.py   the calls of clients: writes, reads, scans
peer_verbs.py     answers an envelope: one message to each of many replicas
member_verbs.py   the calls about members
"""
