"""HTTP: routes, streaming, access checks and the socket."""
