"""What runs typescript-sdk's e2e suite with a gateway between each of its clients and servers."""
