//! Moves an image from a source to a target.
