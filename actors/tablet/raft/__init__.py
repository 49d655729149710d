"""The Raft core: one tablet's replicated log as a pure state machine. Start with core.py, then messages.py."""
