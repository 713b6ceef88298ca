//! Google Cloud Storage, by object_store.
