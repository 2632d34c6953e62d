"""Where the states of budgets are kept: in this process, in Redis or in PostgreSQL. `budget` has what is decided."""
