"""From a call to a server and back.

client.py       one connection: the masters, the router, what it knows of tables
router.py       brings units of work to the leaders of their tablets, through changes, silence and refusals
lanes.py        calls to one server: requests that queue during a call are sent together as the next call
routes.py       where each tablet is served, and which server to ask after a refusal
batches.py      units of work: sent to a tablet and answered as one
fast_path.py    a single get or upsert, in its caller's own thread
opening.py      the result of a call that opens something, for `await` and `async with`
bridge.py       runs the awaited API for callers that do not await
"""
