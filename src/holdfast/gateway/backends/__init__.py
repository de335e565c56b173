"""The servers behind the gateway: their links, what they offer, which of them has a name."""
