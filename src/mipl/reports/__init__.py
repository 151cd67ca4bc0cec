"""Tables, figures and pages for any results, drawn from records and plain arrays, never from a model."""
