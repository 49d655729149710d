"""Creates, starts and deletes replicas.

lifecycle.py     creates replicas, and at a start loads those on the disk
bootstrap.py     assembles a replica's log from the shared and the private log
deletion.py      deletes a replica: to a tombstone, or for good
tombstones.py    a deleted or copying replica, which remembers its votes
verbs.py         the first checks of every call: which server, which replica
failed.py        a replica whose data could not be loaded
"""
