"""The phrase-based baseline (paper, Table 1, row 1), on the word aligners of SIL Thot."""
