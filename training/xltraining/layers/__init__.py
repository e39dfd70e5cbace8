"""What models of several architectures share: sinusoids, states of random numbers, and layers kept in a file."""
