"""What several components share, and the contract does not know."""
