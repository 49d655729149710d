"""A Ray cluster of several nodes on this machine.

cluster.py       start, adopt and stop the cluster
node.py          one raylet: its command, its environment, the log lines of its start
ray_start.py     the program that starts a raylet
setup_worker.py  the step before each worker
processes.py     the processes that belong to the cluster
failure.py       a failed start, saved for later commands
"""
