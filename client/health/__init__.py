"""Whether a deployment is healthy.

survey.py       asks masters, journal nodes and servers
verdicts.py     the values: surveys and verdicts
tablets.py      judges tablets, replicas and servers
masters.py      judges masters and their journal
checksums.py    judges the digests of replicas
disks.py        judges the disks of servers
"""
