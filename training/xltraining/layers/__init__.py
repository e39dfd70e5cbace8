"""Parts that several architectures share: sinusoids, random states, and layers kept in a file."""
