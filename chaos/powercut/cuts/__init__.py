"""Power cuts.

cuts.py       draws the moment and the remaining data; verifies them
platter.py    the possible contents of a disk after a power cut
verify.py     starts the roles and checks every promise
"""
