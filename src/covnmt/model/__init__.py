"""The networks of the paper: a bidirectional encoder, attention with coverage, a decoder."""
