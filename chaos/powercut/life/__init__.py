"""The recorded life: real roles over real LMDB files.

life.py       the steps of a life
machine.py    one host with its roles, and a network between them
client.py     a client of one tablet at a time
ghosts.py     simulated peers of a follower
"""
