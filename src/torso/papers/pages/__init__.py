"""Text for readers: the generated Markdown pages and pictures in docs/, and the tables that the commands print."""
