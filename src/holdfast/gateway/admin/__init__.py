"""The admin socket of a gateway process: figures and events for its operator, for as long as somebody reads them."""
