"""Calls: sending a request, classifying the answer, and repeating it where that is safe."""
