"""Requests of clients about tables.

tables.py      create, alter, drop, recall, look up: each change is decided and concluded by the scribe
requests.py    validation of requests, and recognition of repeated ones
answers.py     answers to clients, from the committed catalog and the last reports
"""
