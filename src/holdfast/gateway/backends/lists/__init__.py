"""What each server offers: its lists, when they were read, and when they are read again."""
