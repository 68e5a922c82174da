"""Secure aggregation: the server of a real federation gets the sum of what its clients send, and no part of it.

The protocol is SecAgg+ (Bell et al. 2020, after Bonawitz et al. 2017) in four stages, each a letter and a reply:

    stage    the server sends                       a client replies
    keys     how many take part                     two public keys, made for this sum
    shares   the public keys of its neighbours      for each neighbour, encrypted: shares of its two secrets
    told     what it trains from, its shares        its vector, masked
    unmask   who has sent a vector and who not      for each neighbour, a share of one of the two secrets
"""
