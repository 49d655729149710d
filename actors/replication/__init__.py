"""Terms that all replication protocols share: tablet cores, the master, the client and the command
line use them.

configuration.py    the members of a tablet, and the order of configurations
appointments.py     how a configuration follows another if the master appoints the primary
health.py           the states of a replica, and how a leader sees a peer
"""
