"""Translation over HTTP, with a web page that shows alignment, coverage and omissions."""
