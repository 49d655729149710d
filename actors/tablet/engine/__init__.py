"""The write path: one loop and one shared log drive all replicas of a server.

replica.py     one replica: the core, the log, the rows, and the clients that wait
rounds.py      the loop: hard states, messages and applied entries of all replicas; beside it, the log writer
quiescence.py  a replica's part in the quiescence of its group, and the contacts that this rests on
liveness.py    the liveness of other servers: one message per pair of servers and interval, for all quiescent groups
others.py      what a server knows of another one, and when it sends it the next message
links.py       the links to peer servers: one message per peer for all tablets, a few under way
core.py        the engine's interface to a replication protocol: `GroupCore`
log.py         one replica's log: its entries, and the place of each
log_index.py   the terms and sizes of the log's entries, in memory, for the core
log_time.py    the time of a tablet's log, by which stored answers expire
apply.py       application of a committed batch of rows; every replica gets the same answer
batches.py     validity of a batch, before it becomes an entry and when it is applied
waits.py       waits until a log is durable or applied; bells for loops
records.py     the records of each replica on disk, besides its log and its rows
identity.py    the identity of this server among its peers, and whether they believe it
space.py       the space on the server's disks, measured and kept in reserve
tally.py       counters for the figures
"""
