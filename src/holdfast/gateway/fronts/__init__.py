"""How clients reach the gateway: HTTP in both eras, and stdio."""
