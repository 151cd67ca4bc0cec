"""An HTTP server for a trained model, with a web page for reviewing the bags of a data set."""
