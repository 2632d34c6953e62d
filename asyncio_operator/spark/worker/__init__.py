"""What runs in Spark's Python workers: tasks, their input and output, and what they share."""
