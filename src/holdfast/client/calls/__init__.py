"""The implementation of `Server`'s methods: each is one typed call over the link of its run."""
