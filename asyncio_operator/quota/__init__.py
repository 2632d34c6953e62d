"""Budgets: limits that all tasks of a job, or several jobs, keep together."""
