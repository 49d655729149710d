"""Scenarios.

scenarios.py    the list that every run picks from
scenario.py     what a scenario is, and what several of them share
disks.py        scenarios of disks that are full, slow or hang
answers.py      scenarios of stored answers and refusals
"""
