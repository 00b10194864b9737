"""Tables and the page that people read."""
