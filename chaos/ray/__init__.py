"""Chaos on a real Ray cluster of this machine: `ebla chaos run`.

run.py          one run: two acts and a verdict
scenarios.py    the scenarios: workloads and likely faults
stage/          a local Ray cluster with a deployment on it
clients.py      one process of clients
groups.py       all processes of clients, driven together
orders.py       messages between a run and its processes of clients
shared.py       registers that all processes share
logs.py         a log that all processes share
pulse.py        one writer per tablet, which measures unavailability
health.py       whether the deployment is healthy again
faults/         carries out and undoes each kind of fault
report/         figures, page and picture of a run
"""
