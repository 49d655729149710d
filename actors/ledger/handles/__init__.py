"""How clients and roles use ledgers, over a world without a disk.

registry.py   what is known of ledgers and stores: metadata, and which stores run
stores.py     calls to stores, by their uuids
writer.py     the one writer of a ledger: numbers entries, acknowledges them in order, replaces stores
window.py     which stores have the entries that are not acknowledged; nothing waits there
channel.py    a writer's connection to one store
calls.py      calls to several stores, whose answers are taken as they come
reading.py    reads entries, and finds the last acknowledged one
ends.py       where a ledger ends, by the answers of its stores; nothing waits there
checking.py   which fragments of a ledger are damaged
recovery.py   ends the ledger of a writer that is gone
options.py    settings
"""
