"""What clients ask of tables.

tables.py      create, alter, drop, recall, look up: each change is decided and concluded by the scribe
requests.py    which requests are valid, and how a repeated one is recognised
answers.py     what clients are told, from the committed catalog and the last reports
"""
