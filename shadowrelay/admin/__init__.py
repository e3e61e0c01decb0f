"""Administration of a node over HTTP: API, health, metrics, and the client for them. docs/reference.md "Commands"."""
