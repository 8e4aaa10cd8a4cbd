"""How the blocks of a pull come: sent over its connection, or copied out of the owner's pool."""
