"""A deployment in virtual time.

loop.py              an asyncio event loop in virtual time: each seed has one history
world.py             roles in one process: their worlds, crashes and restarts
deployment.py        masters, journal nodes, tablet servers and clients together
network.py           delays, cuts and losses of calls and of single messages in them, and the two failures that a caller can see
disk.py              a disk in memory with the promises of LMDB
medium.py            its durable state, which outlives crashes
environment.py       environments of that disk
streams.py           environments that are sent to another disk
points.py            fault points and marks
nemesis.py           carries out a plan of faults
network_faults.py    faults of the network
losses.py            hosts that are lost, for good or for a while
damage.py            damage to stored records
ledger_roles.py      ledger stores, replication workers and auditors, with small limits
masters.py           a single master, with the journal's only node
restores.py          an older copy of a single master's directory is restored
local_scans.py       rows read in place by a process beside a server
observers/           roles that record their answers
"""
