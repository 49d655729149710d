"""A small namespace for coordination, served by the active master: sessions, ephemeral and sequential nodes, versions, and
waits for changes. docs/coordination.md has its promises.

service.py      the active master's part, which joins the others
namespace.py    the state: nodes, sessions, their answers
edits.py        the only changes of the state, in the master's edit log
requests.py     whether a request may be carried out, and as which edit
timers.py       the time of each session's expiry
watchers.py     calls that wait for a change
sessions/       the caller's side: sessions, nodes, watches and locks
messages.py     messages between callers and the active master
paths.py        paths of nodes
limits.py       limits of the namespace
errors.py       refusals
"""
