"""`ebla chaos`.

chaos.py        scenarios, simulate, planted
replaying.py    replay
running.py      run, on a real Ray cluster
"""
