"""Benchmarks and the tools that make their models. Not part of the installed package."""
