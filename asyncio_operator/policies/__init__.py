"""Specifications and their pure logic: what they decide at a given time. They know neither asyncio nor any clock."""
