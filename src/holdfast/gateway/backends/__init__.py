"""The servers behind the gateway: their links, what they offer, who answers for a name."""
