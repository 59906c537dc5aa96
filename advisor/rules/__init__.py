"""Speed advice: one file a rule, listed in RULES."""
