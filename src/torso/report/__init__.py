"""What a user sees: the commands, their tables and progress bars, the report page and its charts."""
