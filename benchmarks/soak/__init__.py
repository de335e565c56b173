"""`make soak`: a gateway under mixed clients while its servers, and the gateway itself, fail at random."""
