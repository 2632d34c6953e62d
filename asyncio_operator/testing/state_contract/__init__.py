"""The contract of state backends: the laws that `check_state_backend` checks."""
