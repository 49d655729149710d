"""The caller's side of the namespace, for roles and clients: sessions that keep themselves alive, nodes, watches and locks.

    session = await open_session(Session, master, 10.0, name="auditor/0", deadline_s=60.0)
    node = await session.get("/config", deadline_s=10.0)
    async with Lock(session, "/locks/audit") as lock: ...

Arguments are not checked here: client/coordination checks those of users.

nodes.py      reads and watches of nodes
changes.py    a session that changes nodes, each change once, and keeps itself alive
locks.py      a fair lock with a fencing token
"""
