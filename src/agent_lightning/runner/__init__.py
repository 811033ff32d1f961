"""Runs agents: worker.py claims and executes, queue.py is the server's side of it."""
