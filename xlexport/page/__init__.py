"""The source of all pages: templates, style sheet and scripts, which the report and the web page share."""
