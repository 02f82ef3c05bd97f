"""From documents to windows of tokens."""
