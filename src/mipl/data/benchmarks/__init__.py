"""Builders of the named data sets, one module per family; :mod:`mipl.data.datasets` lists the names."""

from mipl.data.benchmarks.embedded import digits_mipl, digits_vectors, gaussian_bags, noisy_digits

__all__ = ["digits_mipl", "digits_vectors", "gaussian_bags", "noisy_digits"]
