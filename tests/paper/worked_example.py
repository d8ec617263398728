"""Parameters at the paper's sizes: 30,001 words, 620, 1000 (docs/paper-to-code.md, section 1.6)."""

TOTAL = 84_349_101  # of the baseline
ADDED = {
    "baseline": 0,
    "linguistic": 1_000,
    "fertility": 3_000,
    "tanh1": 4_002,
    "gru1": 10_006,
    "gru10": 100_330,
}
BLOCKS = {
    "source embedding": 18_601_240,
    "encoder forward": 4_861_000,
    "encoder backward": 4_861_000,
    "target embedding": 18_601_240,
    "decoder word inputs": 1_861_000,
    "decoder recurrent": 3_000_000,
    "decoder context inputs": 6_000_000,
    "decoder start": 1_001_000,
    "attention": 3_001_000,
    "readout": 3_621_000,
    "output": 18_940_621,
    "coverage": 0,
}
