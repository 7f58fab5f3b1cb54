"""Scripts for maintainers, one a file, each of which says when to run it.

Not part of the installed package. What users measure is `copyspec-edge bench`.
"""
