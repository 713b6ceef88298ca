//! Fields that a template leaves open. Not here: which preference fills which field.

/// Fills in `field` if it is open.
pub(super) fn fill<T: Clone>(field: &mut Option<T>, preferred: &Option<T>) {
    if field.is_none() {
        field.clone_from(preferred);
    }
}
