"""`FakeService`: an HTTP server for tests, with rows, faults, limits, and the headers of providers."""
