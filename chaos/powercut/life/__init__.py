"""The life that is recorded: real roles over real LMDB files.

life.py       what happens in it
machine.py    one host with its roles, and a network between them
client.py     a client of one tablet at a time
ghosts.py     peers that are played
"""
