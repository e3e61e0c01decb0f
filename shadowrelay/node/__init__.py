"""A node: its parts assembled, started, followed through reloads, and stopped. docs/architecture.md "The packages"."""
