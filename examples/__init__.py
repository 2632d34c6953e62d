"""Programs that show the library at work. They are run by tests."""
