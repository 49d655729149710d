"""The configurations of PacificA tablets: the active master appoints every primary (actors/tablet/pacifica says why).

appointer.py    beacons and requests of tablet servers, and the loop that makes one edit for all changes that are due
planner.py      decides, without waiting, which tablets get another configuration, and which primaries get an order
voters.py       what servers have reported of their replicas, and which voter leads next
doubts.py       the tablets of an accepted older catalog, until their last configurations are known
orders.py       the calls to the servers of primaries
forcing.py      for operators: the evidence about a tablet that does not work, and a forced configuration

The order of the steps: decided, durable in the catalog, in memory, then answered and sent to servers. A server's order or
answer names its lease, and the detector acknowledges no beacon of a server between the decision about its end and the
moment when the edit is durable.
"""
