"""The phrase-based row: statistical translation with SIL's Thot (paper, Table 1, row 1)."""
