"""Network parts; they see tensors, never `Bags`."""
