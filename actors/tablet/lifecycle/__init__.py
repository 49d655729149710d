"""Creates, starts and deletes replicas.

lifecycle.py     creates replicas, and puts their parts together
starting.py      at a start, finds the replicas on the disk, and loads one after another while the server serves
bootstrap.py     assembles a replica's log from the shared and the private log
deletion.py      deletes a replica: to a tombstone, or for good
tombstones.py    a deleted or copying replica, which remembers its votes
verbs.py         the first checks of every call: which server, which replica
failed.py        a replica whose data could not be loaded
"""
