"""The HTTP front: connections, requests and answers, in both eras."""
