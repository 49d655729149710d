"""Defects that the simulation must find: known ways to get a replicated database wrong.

A row of the table names a defect; the function that it swaps stands in the module of its subject.

    planted.py              the table
    planted_masters.py      its rows about masters, their journal and coordination
    planted_disasters.py    its rows about forced configurations
    planted_disks.py        its rows about full disks and scans
    planted_crowds.py       its rows about several requests of one client
    planted_answers.py      its rows about stored answers and clocks
    defect.py               what a defect is, and plans that are written by hand
    replication.py          swaps in elections, replication, rows and clients
    repairs.py              swaps in changes of members and copies
    alters.py               swaps in alterations
    crowds.py               swaps where several requests of one client are under way
    disasters.py            swaps in forced configurations
    disks.py                swaps in full disks and scans
    answers.py              swaps in stored answers, log time and refusals
    standbys.py             swaps in standbys
    growing.py              swaps in the growth of a journal
"""
