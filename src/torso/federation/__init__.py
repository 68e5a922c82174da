"""A real federation: clients on machines of their own, each with its own data, over Flower's deployment runtime."""
