"""Sessions, nodes, watches and locks: the API for users, who find its promises in docs/coordination.md. The work is done by
actors/coordination/sessions/; here the arguments are checked.

awaited.py     for code that awaits
blocking.py    for code that does not await
"""
