"""Three small servers and a show: what `make run` starts. It owns nothing that a product needs."""
