"""What travels: messages taken apart and put together, shared by the server and its clients."""
