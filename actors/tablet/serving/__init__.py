"""What clients and peer servers ask of replicas.

admission.py      what a request must pass before it reaches a replica
scans.py          snapshot scans, block by block
checksums.py      digests of replicas at one log index
alterations.py    how an alteration, a drop or a recall of the table reaches its replicas
handing_over.py   hands leaderships over: one, or all when the server stops
peer_verbs.py     answers an envelope: one message to each of many replicas
member_verbs.py   the calls about members
"""
