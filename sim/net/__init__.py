"""Devices on machines of their own: the only room of the package with sockets.

    device  --dials-->  server

Devices connect to the server over TLS, by WebSocket (RFC 6455), and show who they are by their
Ed25519 identity. The server then hands over tasks, one for each round, and carries the protocol's
envelopes unchanged. All that is secret stays in the protocol's machines; what this package adds is
transport: who is connected, how long to wait, and what a lost message means.

    frames          what passes on a connection, byte for byte
    identities      files that say who a device is, and how it shows it to a server
    trips           messages of a round, their answers, and how long the server waits for them
    post            what is due to each device and from it; between the round and the connections
    remote          the devices of a run, as the engine asks them
    device          a device's side of a connection, without the connection
    own_work        what a device computes on its own data
    app, dialling   the connections themselves, at the server and at a device
"""
