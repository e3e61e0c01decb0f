"""Thin loops that obey `core`: accept, deliver, copy, heartbeat, promote, review, sweep. Floor 4; no SQL, no sockets here."""
