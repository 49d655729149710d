"""The roles of a deployment, and the world that they see.

A role is a plain asyncio class. It uses the clock, the network, the disk and chance only through its `World`, so the
same class runs on Ray and in the simulation. Start with `world.py`.

    world.py           the interface between a role and the world
    messages/          every message between roles and from clients
    replication/       configurations, membership and health: words that every replication protocol shares
    tablet/            the tablet server, which keeps replicas of tablets
    master/            the master, which owns the catalog and places tablets
    journal/           the quorum journal, which has the catalog's edits
    asking/            requests to the active master, from clients and from roles
    ledger/            ledgers, of which logs are made, and their stores
    coordination/      sessions, nodes, watches and locks, served by the active master
    detector/          leases of servers and their end, for PacificA tables
    deadlines.py       the deadline of a block of code, on every Python
    errors.py          errors that travel between roles
    fault_points.py    the names of all fault points and marks
    figures.py         the figures that a role reports
    neighbours.py      the processes of one host see each other end
    incarnations.py    recognises a server on an old copy of its directory
    catalog_versions.py    recognises a master on an older copy of its catalog
    ray_shell.py       starts, drives and ends a role inside its process
    ray_world.py       the real world: Ray's actors, this machine's clock, an LMDB directory
    ray_metrics.py     a role's figures as Ray's own metrics
"""
