"""Words that every replication protocol shares: tablet cores, the master, the client and the command line use these.

configuration.py    the members of a tablet, and which configuration is newer
health.py           the states of a replica, and how a leader sees a peer
"""
