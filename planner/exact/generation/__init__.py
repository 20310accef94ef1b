"""How a pool can generate: layouts with their memory, ways to bring weights, bounds on seconds, exact seconds.

It looks at one pool at a time; what else runs there is bytes that the cache does not get.
"""
