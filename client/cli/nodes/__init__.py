"""The deployment and its hosts.

deployment.py     up, down, status
again.py          where a deployment that is down has its data, and the command that starts it again
local.py          the local Ray cluster of `ebla up --local`
check.py          check
level.py          level
nodes.py          nodes
draining.py       nodes drain, maintain, suspend, allow-only
decommissioning.py  nodes decommission
forgetting.py     nodes forget
metrics.py        metrics
"""
