"""Private Δ-FL inside Flower (flwr 1.41 and 1.42), for its Message API.

    server app:   strategy = PrivateDeltaFL(theta="1/2")             (`strategy`)
    client app:   app = ClientApp(mods=[DeltaFLMod(own_loss)])       (`mod`)

Flower starts and stops everything, chooses nodes, evaluates, logs. One message of Flower's to each
node and round hands over an address and a token; the round's trips then go over the transport of
`deltafl.sim.net`, from the server app, because a message of Flower's takes seconds and a round has
tens of trips.
"""
