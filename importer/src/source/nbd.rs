//! NBD, own client.
