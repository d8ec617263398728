"""The hot path. `reference` is the oracle that every faster implementation is held to."""
