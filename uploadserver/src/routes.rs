//! From a request's verb and path to its operation. Pure. Not here: clients and headers.

use api::names;
use api::upload::{RESOURCES, Way};
use http::Method;

/// The operation of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// An upload.
    Upload(Way),
    /// Whether there are async uploads, and how far one is.
    HeadAsync,
    /// The offset of a broken upload.
    Offset(String),
    /// Resumes a broken upload.
    Append(String),
    /// To forget a broken upload.
    Cancel(String),
    /// The probe.
    Health,
    /// The metrics.
    Metrics,
    /// Nothing there is.
    Nothing,
}

/// See [`Asked`]. Verbs that are not known get what unknown paths get, as upstream.
pub(crate) fn asked(method: &Method, path: &str) -> Asked {
    if let Some(name) = path.strip_prefix(RESOURCES) {
        return match *method {
            Method::HEAD => Asked::Offset(name.to_owned()),
            Method::PATCH => Asked::Append(name.to_owned()),
            Method::DELETE => Asked::Cancel(name.to_owned()),
            _ => Asked::Nothing,
        };
    }
    match (method, path, Way::of_path(path)) {
        (&Method::POST, _, Some(way)) => Asked::Upload(way),
        (&Method::HEAD, _, Some(way)) if way.is_async() => Asked::HeadAsync,
        // Upstream's probe answers every verb.
        (_, names::HEALTH_PATH, _) => Asked::Health,
        (&Method::GET, names::METRICS_PATH, _) => Asked::Metrics,
        _ => Asked::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_and_path() {
        let name = || "x".to_owned();
        for (method, path, expected) in [
            ("POST", "/v1beta1/upload", Asked::Upload(Way::Sync)),
            ("POST", "/v1alpha1/upload-async", Asked::Upload(Way::Async)),
            ("POST", "/v1beta1/upload-form", Asked::Upload(Way::Form)),
            ("POST", "/v1beta1/upload-form-async", Asked::Upload(Way::FormAsync)),
            ("POST", "/v1beta1/upload-archive", Asked::Upload(Way::Archive)),
            ("HEAD", "/v1beta1/upload-async", Asked::HeadAsync),
            ("HEAD", "/v1beta1/upload-form-async", Asked::HeadAsync),
            ("HEAD", "/v1beta1/upload", Asked::Nothing),
            ("GET", "/v1beta1/upload", Asked::Nothing),
            ("PUT", "/v1beta1/upload-async", Asked::Nothing),
            ("PATCH", "/v1beta1/upload", Asked::Nothing),
            ("POST", "/v1/upload", Asked::Nothing),
            ("GET", "/healthz", Asked::Health),
            ("GET", "/metrics", Asked::Metrics),
            ("POST", "/metrics", Asked::Nothing),
            ("HEAD", "/v1beta1/uploads/x", Asked::Offset(name())),
            ("PATCH", "/v1beta1/uploads/x", Asked::Append(name())),
            ("DELETE", "/v1beta1/uploads/x", Asked::Cancel(name())),
            ("POST", "/v1beta1/uploads/x", Asked::Nothing),
        ] {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            assert_eq!(asked(&method, path), expected, "{method} {path}");
        }
    }
}
