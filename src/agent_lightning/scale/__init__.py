"""See the file that bears this room's name."""
