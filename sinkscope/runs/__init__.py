"""How a run measures, and the run itself: every window once through the model."""
