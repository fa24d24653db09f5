"""Whether everything arrived: sums of what went in and out, and what stores hold beside a topic."""
