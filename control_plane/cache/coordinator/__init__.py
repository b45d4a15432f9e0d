"""All cache groups as one: what a step demands, what it is granted, and what is evicted for it."""
