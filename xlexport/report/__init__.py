"""Web pages that show a text coloured by how surprising a bundle finds it."""
