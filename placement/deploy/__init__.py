"""Roles on hosts.

slots.py     the hosts, and the placement of roles on them
roles.py     the roles of a deployment, and the launch configuration of each
groups.py    placement groups, which pin roles to hosts
fleet.py     launches each actor once on its bundle, or adopts it
memory.py    keeps the deployment's state on this host and on every slot
nearby.py    the slots on this machine
"""
