"""What is known of outside services, for the coordinators of budgets, for caches and for enrichers.

| module | what it knows |
| --- | --- |
| `secrets` | secrets in texts, and how to hide them |
| `secret_source` | a secret, or a function that returns it |
| `causes` | what an error of a library means |
| `closing` | how long closing a client may take |
| `redis_client`, `redis_values` | URLs, connections and errors of Redis |
| `postgres_dsn`, `postgres_client` | connection strings, connections and errors of PostgreSQL |
"""
