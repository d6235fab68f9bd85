"""How an update step or an action is executed: eagerly, in C, or as a compiled graph."""
