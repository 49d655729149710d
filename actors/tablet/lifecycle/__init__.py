"""How a replica is created, started and deleted.

lifecycle.py     creates replicas, and brings back at a start what the disk holds
bootstrap.py     puts a replica's log together from the shared and the private log
deletion.py      deletes a replica: to a tombstone, or for good
tombstones.py    a deleted or copying replica, which remembers its votes
failed.py        a replica whose data could not be loaded
"""
