"""Metrics of translations and alignments (paper, section 5): functions of text and arrays.

Nothing here reads files, starts processes or prints.
"""
