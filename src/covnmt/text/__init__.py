"""Raw line <-> tokens <-> ids: tokenisers, vocabularies, and corpora as arrays on disk."""
