"""shadowrelay: an SMTP relay that says 250 only when a second server holds a synced copy of the message."""

__version__ = "0.1.0"
