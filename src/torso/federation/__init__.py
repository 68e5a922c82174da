"""A real federation: clients on separate machines, each with its own data, connected by Flower's deployment runtime."""
