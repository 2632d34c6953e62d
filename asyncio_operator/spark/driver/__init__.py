"""What runs on the driver: it checks options, resolves columns and builds the task that Spark sends to the workers."""
