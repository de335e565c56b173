"""The program between many clients and many servers. Owns routing and session records; refuses to guess a caller."""
