"""Programs over stdio: started by the warden, ended with everything that they started."""
