"""What an operator sees of a node and may ask of it over HTTP: API, health, metrics, and the client for them."""
