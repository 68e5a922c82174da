"""What a person sees: tables in the terminal, progress while a run goes on."""
