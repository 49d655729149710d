"""Plans that are written, not drawn: what a planted defect needs, and chance hardly ever brings about."""

from __future__ import annotations

from ebla.chaos.plans import Fault

# Whoever leads is cut off from its followers, and not from its clients, while its disk takes its time: what is then written
# to it alone is still on its way to the disk when others' entries have come in its place.
SLOW_AND_CUT_OFF = (
    Fault(0.5, "slow_disk", ("host-1",), 8.0, 6.0),
    Fault(2.0, "cut", ("host-1", "host-2"), 2.6),
    Fault(2.0, "cut", ("host-1", "host-3"), 2.6),
)

# Half of all messages come twice, a fifth of them up to a second late: after the sender was answered, and has gone on.
LATE_DUPLICATES = (Fault(0.0, "repeat", (), 8.0, 0.5), Fault(0.0, "delay", (), 8.0, 1.0))
