//! From a request's verb and path to what is asked of the proxy. Pure. Not here: tokens.

use api::names;
use api::upload::{RESOURCES, Way};
use http::Method;

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Something of an upload server.
    Server,
    /// Rights of a page of another origin.
    Preflight,
    /// The probe.
    Health,
    /// Nothing there is.
    Nothing,
}

/// See [`Operation`]. Which verbs there are is the server's business. Archives come by the paths of images, as upstream.
pub(crate) fn operation(method: &Method, path: &str) -> Operation {
    if method == Method::OPTIONS {
        return Operation::Preflight;
    }
    if path == names::HEALTH_PATH {
        return Operation::Health;
    }
    let word = |c: u8| c.is_ascii_alphanumeric() || c == b'-' || c == b'_';
    match (Way::of_path(path), path.strip_prefix(RESOURCES)) {
        (Some(Way::Sync | Way::Async | Way::Form | Way::FormAsync), _) => Operation::Server,
        (None, Some(name)) if (1..=64).contains(&name.len()) && name.bytes().all(word) => Operation::Server,
        (Some(Way::Archive) | None, _) => Operation::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path() {
        for (method, path, expected) in [
            ("POST", "/v1beta1/upload", Operation::Server),
            ("POST", "/v1alpha1/upload", Operation::Server),
            ("HEAD", "/v1beta1/upload-async", Operation::Server),
            ("GET", "/v1beta1/upload-form-async", Operation::Server),
            ("POST", "/v1alpha1/upload-form", Operation::Server),
            ("PATCH", "/v1beta1/uploads/0a-_", Operation::Server),
            ("POST", "/v1beta1/upload-archive", Operation::Nothing),
            ("HEAD", "/v1beta1/uploads/", Operation::Nothing),
            ("HEAD", "/v1beta1/uploads/a/b", Operation::Nothing),
            ("HEAD", "/v1beta1/uploads/..", Operation::Nothing),
            ("HEAD", "/v1beta1/uploads/%2e", Operation::Nothing),
            ("POST", "/v1/upload", Operation::Nothing),
            ("GET", "/", Operation::Nothing),
            ("GET", "/metrics", Operation::Nothing),
            ("GET", "/healthz", Operation::Health),
            ("OPTIONS", "/v1beta1/upload", Operation::Preflight),
        ] {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            assert_eq!(operation(&method, path), expected, "{method} {path}");
        }
    }
}
