"""What a run is, and folders of finished runs."""
