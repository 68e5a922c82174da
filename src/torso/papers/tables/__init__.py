"""The papers' tables: published numbers and recipes (a folder for each paper), the runs, the answers, the claims."""
