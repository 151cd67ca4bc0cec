"""A trained model behind HTTP, and a page on which a person reviews the doubtful bags."""
