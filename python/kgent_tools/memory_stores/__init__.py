"""Memory clients over stores that others maintain; each needs an extra of its own."""
