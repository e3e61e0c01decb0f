"""shadowrelay: an SMTP relay that places a synced copy of each message on a second server before it says 250."""

__version__ = "0.1.0"
