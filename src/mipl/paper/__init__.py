"""Everything about the paper: runs to make, printed values, tables, figures, claims and their page."""
