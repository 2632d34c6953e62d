"""Histories of runs (law Y2): their format, and a checker of the laws. It imports nothing outside of this folder."""
