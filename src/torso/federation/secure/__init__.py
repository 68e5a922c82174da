"""Secure aggregation: the server of a real federation learns the sum of its clients' uploads, but no single upload.

The protocol is SecAgg+ (Bell et al. 2020, after Bonawitz et al. 2017) in four stages, each a request and a reply:

    stage    the server sends                       a client replies
    keys     the number of participants             two public keys, made for this sum
    shares   the public keys of its neighbours      for each neighbour, encrypted: shares of its two secrets
    told     what it trains from, its shares        its masked vector
    unmask   which neighbours sent a vector         for each neighbour, a share of one of the two secrets
"""
