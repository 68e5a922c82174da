"""An audit of differential privacy: canaries in many runs, and what their traces prove about ε."""
