"""Requests to the active master, by clients and by roles: repeated until there is an answer, carried out once. None of this
needs a disk.

master_client.py    asks the active master, and finds it among several
retries.py          which refusals may pass, and how long to wait before the next attempt
certainty.py        whether a failed request may have been carried out
ends.py             reports to the active master which tablet server of this host has ended
"""
