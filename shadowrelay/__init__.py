"""An SMTP relay that places a synced copy of each message on a second server before it answers 250. README.md, docs/design.md 1."""

__version__ = "0.1.0"
