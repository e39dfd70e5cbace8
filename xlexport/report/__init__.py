"""Pages for the browser: a text coloured by how surprising a bundle finds it."""
