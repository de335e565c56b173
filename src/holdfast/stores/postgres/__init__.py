"""The store on PostgreSQL, for many machines."""
