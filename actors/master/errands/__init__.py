"""The master's calls to tablet servers.

errands.py      decides which calls are due
messenger.py    makes the calls and reports their outcomes
"""
