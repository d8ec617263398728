"""How good is a translation, and an alignment: the measures of the paper's section 5."""
