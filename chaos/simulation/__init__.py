"""A deployment in virtual time.

loop.py              an asyncio event loop in which nothing waits: one seed is one history
world.py             roles in one process: their worlds, their deaths, their returns
deployment.py        masters, journal nodes, tablet servers and clients, put together
network.py           delays, cuts and losses, and the two failures that a caller can see
disk.py              a disk in memory that promises what LMDB promises
medium.py            its durable state, which outlives crashes
environment.py       environments of that disk
streams.py           environments on their way to another disk
points.py            fault points and marks
nemesis.py           carries out a plan of faults
network_faults.py    faults of the network
losses.py            hosts that are lost for good, or seem to be
damage.py            damage to stored records
masters.py           an only master, with the journal's only node
restores.py          an older copy of a single master's directory is put in place
local_scans.py       rows read in place by a process beside a server
observers/           roles that record what leaves them
"""
