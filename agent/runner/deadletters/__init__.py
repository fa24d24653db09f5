"""Events that can never be delivered: made, kept with a reason, found again, and replayed."""
