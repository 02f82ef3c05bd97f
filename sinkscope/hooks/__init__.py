"""Everything that touches a model's forward."""
