"""Scenarios.

scenarios.py    the list of all scenarios
logs.py         scenarios of logs
scenario.py     the class of scenarios, and mixes that several share
pacifica.py     scenarios with PacificA tables
columns.py      scenarios with tables whose rows are stored as columns
"""
