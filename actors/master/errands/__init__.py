"""The master's calls to tablet servers.

errands.py      which calls are due, when, and how often
messenger.py    makes the calls and reports how each ended
"""
