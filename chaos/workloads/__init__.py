"""What clients and operators do in a run. Each workload notes a history that a checker judges.

base.py           what every workload is made of
operators.py      what workloads share that act as operators
registers.py      a few keys that everybody reads and writes
tokens.py         one set that everybody adds to and reads
bank.py           money moved in atomic batches
chains.py         nodes that point to the last acknowledged one
stamps.py         groups of rows that get one number
locks.py          locks, sequential nodes, watches
alters.py         columns come and go under inserts
churn.py          tables come and go
moves.py          members come and go
salvage.py        an operator saves what is left after hosts are lost
recalls.py        a table is dropped and recalled under inserts
refused.py        requests that were refused arrive again
inspections.py    an operator looks at masters and their journal
"""
