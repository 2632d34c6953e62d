"""Specifications and their pure logic: what they decide, given the time. They know neither asyncio nor any clock."""
