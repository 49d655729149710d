"""The deployment and its hosts.

deployment.py     up, down, status
local.py          the local Ray cluster of `ebla up --local`
check.py          check
nodes.py          nodes
draining.py       nodes drain
maintaining.py    nodes maintain
forgetting.py     nodes forget
metrics.py        metrics
"""
