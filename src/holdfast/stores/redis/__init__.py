"""The store on Redis or Valkey, for many machines."""
