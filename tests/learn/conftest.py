"""Tests here may use the parts of the federation that is worked out by hand."""

from tests.methods.tiny import tiny_parts

__all__ = ["tiny_parts"]
