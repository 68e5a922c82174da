"""The papers' tables: published numbers and recipes (a folder per paper), the runs that answer them, the claims."""
