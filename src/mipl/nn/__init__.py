"""Network modules on tensors; `Bags` are unknown here."""
