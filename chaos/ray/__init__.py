"""Chaos on a real Ray cluster of this machine: `ebla chaos run`.

run.py          one run: two acts and a judgement
scenarios.py    what is run, and which faults to expect
stage/          a local Ray cluster with a deployment on it
clients.py      one process of clients
crowd.py        all processes of clients, driven together
orders.py       what a run and its processes of clients say to each other
shared.py       registers that all processes share
pulse.py        one writer per tablet: how long nothing could be written
health.py       whether the deployment is whole again
faults/         how each kind of fault is carried out and undone
report/         figures, page and picture of a run
"""
