//! container registries: docker://.
