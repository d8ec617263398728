"""The phrase-based row (paper, Table 1, row 1): our own system on SIL Thot's aligners, or Moses."""
