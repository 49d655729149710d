"""An operator's work on a deployment, without a terminal. The command line and the simulated operators use it.

cluster.py       one connection: survey, find a table or a tablet, repeat a request until it is answered
waiting.py       progress, and waiting until something is done
naming.py        which server, host or replica is meant
checking.py      the health of everything, checked again while it may recover, and compared by digests
members.py       changes of a tablet's members, and waiting until they have taken effect
forcing.py       a configuration without a majority
diagnosis.py     why a tablet does not work; a forced configuration of a PacificA tablet
copies.py        the copies that run, and how each ended
compacting.py    merging the runs of a tablet's replicas
quarantine.py    the data of deleted replicas on all servers
draining.py      emptying a host of tablets
decommissioning.py  taking a host out of service: tablets and ledgers
forgetting.py    forgetting the ledger stores of a lost host
journals.py      the nodes of the masters' journal
logs.py          what is known of a log and its ledgers
ledgers.py       all ledgers, and whether every store has its entries
"""
