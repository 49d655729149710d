"""A Ray cluster of several nodes on this machine.

cluster.py      start, adopt and stop the cluster
node.py         one raylet: its command, its environment, its first words
processes.py    which processes belong to the cluster
failure.py      a failed start, remembered for later commands
"""
