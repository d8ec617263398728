"""Between lines of text, tokens and ids: tokenizers, vocabularies, sentence splitting."""
