"""The failure detector of PacificA tables, in two parts that never wait, and that see no clock and no network.

limits.py      the times, and how they depend on each other
lease.py       a tablet server's part: without a lease it serves no PacificA replica
detector.py    the active master's part: it decides that a server has ended or is cut off

A server sends beacons to all masters; the active one acknowledges them. The server counts its lease from the
*sending* of a beacon, the master counts the silence from its *receipt*, each on its own monotonic clock. So a
server's lease is over before the master takes its replicas away, as long as the server's clock is not slower
than the master's by grace_s / lease_s or more. Nothing depends on the time of day.

Four rules close the gaps that the two times leave:

- Between a decision and the moment when its edit is durable, no beacon of that server is acknowledged.
- A new active master counts every server's silence from its own beginning, however old the last beacon is.
- Leases have numbers, and an order (be primary, be secondary) names the lease of its server. A replica serves only
  during the lease of its last order, even if the order came late or the server was paused and did not notice the loss.
- The catalog records an incarnation of a server before its first beacon is acknowledged. So a later one than the
  recorded one has never served, and a beacon of an earlier one, which arrives late, is recognised by every master.

A server that shows a later incarnation of itself has the lock of its directory, so the former process has ended:
its replicas are taken away at once, without waiting for the silence. If another process of the host has seen the former one end
(actors/asking/ends.py), another replica leads before the server has started again.

Sources: seed 001 (beacon, lease, grace; a hung disk stays unnoticed, which is why a server with a stalled log
writer sends no beacons); the PacificA paper, 4.2; Pegasus for servers that restart too often.
"""
