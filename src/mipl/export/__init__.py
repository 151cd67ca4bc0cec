"""A trained model for others: an ONNX graph, and a card that says what it is."""
