"""Dead letters: events that can never be delivered, stored with the reason, read back, and reported as alerts."""
