//! From a request's verb and path to what is asked of the proxy. Pure. Not here: tokens.

use api::names;
use api::upload::{RESOURCES, Way};
use http::Method;

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Something of an upload server.
    Server,
    /// Rights of a page of another origin.
    Preflight,
    /// The probe.
    Health,
    /// Nothing there is.
    Nothing,
}

/// See [`Asked`]. Which verbs there are is the server's business. Archives come by the paths of images, as upstream.
pub(crate) fn asked(method: &Method, path: &str) -> Asked {
    if method == Method::OPTIONS {
        return Asked::Preflight;
    }
    if path == names::HEALTH_PATH {
        return Asked::Health;
    }
    let word = |c: u8| c.is_ascii_alphanumeric() || c == b'-' || c == b'_';
    match (Way::of_path(path), path.strip_prefix(RESOURCES)) {
        (Some(Way::Sync | Way::Async | Way::Form | Way::FormAsync), _) => Asked::Server,
        (None, Some(name)) if (1..=64).contains(&name.len()) && name.bytes().all(word) => Asked::Server,
        (Some(Way::Archive) | None, _) => Asked::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path() {
        for (method, path, expected) in [
            ("POST", "/v1beta1/upload", Asked::Server),
            ("POST", "/v1alpha1/upload", Asked::Server),
            ("HEAD", "/v1beta1/upload-async", Asked::Server),
            ("GET", "/v1beta1/upload-form-async", Asked::Server),
            ("POST", "/v1alpha1/upload-form", Asked::Server),
            ("PATCH", "/v1beta1/uploads/0a-_", Asked::Server),
            ("POST", "/v1beta1/upload-archive", Asked::Nothing),
            ("HEAD", "/v1beta1/uploads/", Asked::Nothing),
            ("HEAD", "/v1beta1/uploads/a/b", Asked::Nothing),
            ("HEAD", "/v1beta1/uploads/..", Asked::Nothing),
            ("HEAD", "/v1beta1/uploads/%2e", Asked::Nothing),
            ("POST", "/v1/upload", Asked::Nothing),
            ("GET", "/", Asked::Nothing),
            ("GET", "/metrics", Asked::Nothing),
            ("GET", "/healthz", Asked::Health),
            ("OPTIONS", "/v1beta1/upload", Asked::Preflight),
        ] {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            assert_eq!(asked(&method, path), expected, "{method} {path}");
        }
    }
}
