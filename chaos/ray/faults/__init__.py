"""Faults on a real Ray cluster.

nemesis.py       carries out a plan, and undoes every fault
probes.py        the faults that this machine can carry out
processes.py     faults of a role's process
nodes.py         faults of a Ray node
network.py       faults of the network
disks.py         faults of a server's disk
"""
