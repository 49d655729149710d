"""The deployment and its hosts.

deployment.py     up, down, status
local.py          the local Ray cluster of `ebla up --local`
check.py          check
nodes.py          nodes
draining.py       nodes drain, maintain, forget
metrics.py        metrics
"""
