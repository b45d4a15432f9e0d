"""Prompts move from the device that prefills to the device that decodes, in one process.

A `Rendezvous` stands between the two. Each device has an end of it (`ends.py`), which is the `Remote` of its executor;
whoever drives both engines pairs the keys of a request, because each plan knows only its own. When both plans have
named a request, its pages are copied one by one, each at the word of `Rendezvous.step`: a driver without threads calls
that, and `TransferThread` calls it otherwise.

Start reading at `pages.py` (what is transferred), then `rendezvous.py` (when, and who is told). May import the streams,
memory and ops of the data plane, and `control_plane.messages`.
"""
