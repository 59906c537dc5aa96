"""A Report as something to read: terminal, HTML, charts."""
