"""Roles on hosts.

slots.py     which hosts there are, and which roles go where
roles.py     which roles a deployment has, and the launch configuration of each
groups.py    placement groups, which pin roles to hosts
fleet.py     launches each actor once on its bundle, or adopts it
memory.py    keeps the deployment's state on this host and on every slot
nearby.py    which slots are on this machine
"""
