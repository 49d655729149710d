"""Planted defects, which the simulation must find.

planted.py         the table of all defects, and the block in which one is planted
defect.py          how a defect is written, and plans that are written by hand
raft.py            elections, commits, leases and reads
quiescence.py      quiescent groups, and the messages between servers that they rely on
pacifica.py        leases, changes and commits of PacificA tablets
storage.py         logs, flushes and scans
answers.py         stored answers, log time and refusals
masters.py         masters, standbys and their journal
coordination.py    nodes, sessions, watches and locks
ledgers.py         stores, writers, readers and recoveries of logs
repairs.py         auditors, replication workers, and stores that they ask
members.py         changes of members, copies and tombstones
alters.py          alterations and recalls
disasters.py       forced configurations and forgotten servers
disks.py           disks that are full, hang or are lost
growing.py         the growth of a journal from one node to several
"""
