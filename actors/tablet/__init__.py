"""The tablet server: the role that keeps replicas of tablets and serves those that it leads.

server.py      the role: its parts, its start, its stop, and its calls
protocols.py   the choice between the replication protocols
engine/        the write path: one loop and one log drive all replicas of the server
stream/        how a leader's entries reach the other members, in every replication protocol
raft/          Raft: elections, commits, changes of members
pacifica/      PacificA: ballots that the master gives, commits on all members, leases
serving/       requests of clients and peers: admission, scans, checksums, envelopes
copy/          copies of a tablet from one server to another
lifecycle/     how a replica is created, started, deleted; tombstones
upkeep/        flushes, log trimming, scrubbing, heartbeats
options.py     settings and limits, each with its reason
measures.py    figures
"""
