"""Results as text for a terminal: one file per kind of answer."""
