"""Load reports between data planes, so that policies rank pods by the requests of all of them."""
