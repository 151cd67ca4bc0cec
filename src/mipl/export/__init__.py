"""Export of a trained model: an ONNX graph and a model card."""
