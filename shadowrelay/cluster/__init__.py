"""What the nodes of a cluster say, asked by the API of each and put together, for commands and console. docs/architecture.md."""
