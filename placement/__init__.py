"""Starts deployments on Ray, places their roles on hosts, and finds them again.

launch.py          bring a deployment up, take it down, report its state
config.py          the settings of `ebla up`
state.py           the state of a deployment on disk, outside of any Ray cluster
connection.py      connect this process to the Ray cluster of a deployment
asking.py          ask the actors of a deployment for their state
deploy/            hosts and slots, placement groups, actors launched or adopted
journal/           the masters' journal is formatted once and found again
local/             a Ray cluster of several nodes on this machine
java.py            which Java runs Spark
extras.py          the packages of optional parts: installed, or an error that names the extra
interrupts.py      cleanup that Ctrl-C does not stop
ray_private.py     the only module that touches Ray's private parts
"""
