"""The demo that `make run` starts: three small servers behind a gateway. No other package uses it."""
