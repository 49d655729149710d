"""From a call to a server and back.

client.py       one connection: request ids, the router, what it knows of tables
router.py       brings units of work to the leaders of their tablets, through changes, silence and refusals
lanes.py        calls to one server: what queues behind a call goes out as the next one
routes.py       where each tablet is served, and where to turn after a refusal
batches.py      what travels to a tablet as one unit and is answered as one unit
certainty.py    whether a failed request may have been carried out
fast_path.py    a lone get or upsert, in its caller's own thread
bridge.py       runs the awaited API for callers that do not await
"""
