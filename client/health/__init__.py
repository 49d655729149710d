"""Whether a deployment is healthy.

survey.py       asks masters, journal nodes and servers
verdicts.py     the values: surveys and verdicts
tablets.py      judges tablets and replicas
needs.py        judges which tablets need another replica, and can get one
service.py      judges what a tablet still does: the five health classes
servers.py      judges servers
masters.py      judges masters and their journal
stores.py       judges ledger stores
ledgers.py      asks for the ledgers that are marked for repair, and judges them
digests.py      asks for the digests of replicas
checksums.py    judges them
disks.py        judges the disks of all roles
"""
