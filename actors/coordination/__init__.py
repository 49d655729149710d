"""A small namespace for coordination, served by the active master: sessions, ephemeral and sequential nodes, versions, and
waits for changes. docs/coordination.md has its promises, client/coordination/locks.py builds a lock on it.

namespace.py is the state, changed by edits.py only; requests.py decides; service.py is the master's part.
"""
