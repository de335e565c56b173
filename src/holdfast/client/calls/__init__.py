"""What a `Server` method does: one typed call over the link of its run."""
