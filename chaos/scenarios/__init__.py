"""Scenarios.

scenarios.py    the list of all scenarios
scenario.py     the class of scenarios, and mixes that several share
disks.py        scenarios of disks that are full, slow or hang
answers.py      scenarios of stored answers and refusals
pacifica.py     scenarios with PacificA tables
"""
