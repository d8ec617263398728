"""Translation over HTTP, and a page on which one sees what became of every word."""
