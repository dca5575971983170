"""What data planes say to each other of their load, so that policies rank pods by all of it."""
