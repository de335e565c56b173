"""The methods that clients may call: what each takes, and what it answers."""
