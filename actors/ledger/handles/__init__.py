"""How clients and roles use ledgers, over a world without a disk.

registry.py   what is known of ledgers and stores: metadata, and which stores run
stores.py     calls to stores, by their uuids
writer.py     the one writer of a ledger: numbers entries, acknowledges them in order, replaces stores
channel.py    a writer's connection to one store
reading.py    reads entries, and finds the last acknowledged one
checking.py   which fragments of a ledger are damaged
recovery.py   ends the ledger of a writer that is gone
options.py    settings
"""
