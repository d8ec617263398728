"""Defaults of `covnmt check`.

They have a module of their own, without NumPy: the command line shows them.
"""

# Tokens per side that can be checked: with words, time grows with their third power.
MAX_TOKENS = 100
MIN_PROBABILITY = 0.5  # of what is reported
