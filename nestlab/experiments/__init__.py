"""One module a study: what is varied, and the function that a notebook calls."""
