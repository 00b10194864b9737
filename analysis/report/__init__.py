"""The reports that a study gets: tables in every format, figures, and one HTML page."""
