"""The stage of a run.

stage.py         a local Ray cluster of several nodes with a deployment on it
namespaces.py    a network namespace for each Ray node
disk_shim.py     a library that makes disks fail on command
victims.py       the process at an address
ledgers.py       the roles that work on ledgers now, and whether every copy of their entries is sound
"""
