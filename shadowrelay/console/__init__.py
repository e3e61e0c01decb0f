"""The console: pages for people, on the node's administration; they ask the same APIs as the commands. docs/reference.md "Console"."""
