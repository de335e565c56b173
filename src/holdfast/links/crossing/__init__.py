"""Sessions of one era over servers of the other, for the SDK's client side: requests, notifications, questions."""
