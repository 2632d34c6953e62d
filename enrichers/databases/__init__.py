"""What the enrichers of databases share: the contract with a server, its connections, and its keys."""
