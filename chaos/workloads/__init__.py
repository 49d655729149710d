"""Workloads: the clients and operators of a run. Each notes a history that a checker judges.

base.py           the classes and helpers of all workloads
operators.py      requests of operators, shared by several workloads
registers.py      all clients read and write a few keys
tokens.py         all clients add to one set and read it
bank.py           money is moved in atomic batches
chains.py         nodes point to the last acknowledged one
stamps.py         groups of rows get one number in one batch
locks.py          locks, sequential nodes, watches
alters.py         columns are added, dropped and renamed during inserts
logs/             logs and ledgers
churn.py          tables are created and dropped
moves.py          members are added, moved and removed
levels.py         the cluster is frozen and thawed, hosts are suspended
salvage.py        an operator repairs tablets after hosts are lost
recalls.py        a table is dropped and recalled during inserts
refused.py        refused requests arrive again
inspections.py    an operator inspects masters and their journal
"""
