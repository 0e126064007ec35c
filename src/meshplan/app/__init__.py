"""The edges: one service function per verb, and the command line that calls them."""
