//! From a request's verb and path to its operation. Pure. Not here: clients and headers.

use api::names;
use api::upload::{RESOURCES, Way};
use http::Method;

/// The operation of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
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

/// See [`Operation`]. Verbs that are not known get what unknown paths get, as upstream.
pub(crate) fn operation(method: &Method, path: &str) -> Operation {
    if let Some(name) = path.strip_prefix(RESOURCES) {
        return match *method {
            Method::HEAD => Operation::Offset(name.to_owned()),
            Method::PATCH => Operation::Append(name.to_owned()),
            Method::DELETE => Operation::Cancel(name.to_owned()),
            _ => Operation::Nothing,
        };
    }
    match (method, path, Way::of_path(path)) {
        (&Method::POST, _, Some(way)) => Operation::Upload(way),
        (&Method::HEAD, _, Some(way)) if way.is_async() => Operation::HeadAsync,
        // Upstream's probe answers every verb.
        (_, names::HEALTH_PATH, _) => Operation::Health,
        (&Method::GET, names::METRICS_PATH, _) => Operation::Metrics,
        _ => Operation::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_and_path() {
        let name = || "x".to_owned();
        for (method, path, expected) in [
            ("POST", "/v1beta1/upload", Operation::Upload(Way::Sync)),
            ("POST", "/v1alpha1/upload-async", Operation::Upload(Way::Async)),
            ("POST", "/v1beta1/upload-form", Operation::Upload(Way::Form)),
            ("POST", "/v1beta1/upload-form-async", Operation::Upload(Way::FormAsync)),
            ("POST", "/v1beta1/upload-archive", Operation::Upload(Way::Archive)),
            ("HEAD", "/v1beta1/upload-async", Operation::HeadAsync),
            ("HEAD", "/v1beta1/upload-form-async", Operation::HeadAsync),
            ("HEAD", "/v1beta1/upload", Operation::Nothing),
            ("GET", "/v1beta1/upload", Operation::Nothing),
            ("PUT", "/v1beta1/upload-async", Operation::Nothing),
            ("PATCH", "/v1beta1/upload", Operation::Nothing),
            ("POST", "/v1/upload", Operation::Nothing),
            ("GET", "/healthz", Operation::Health),
            ("GET", "/metrics", Operation::Metrics),
            ("POST", "/metrics", Operation::Nothing),
            ("HEAD", "/v1beta1/uploads/x", Operation::Offset(name())),
            ("PATCH", "/v1beta1/uploads/x", Operation::Append(name())),
            ("DELETE", "/v1beta1/uploads/x", Operation::Cancel(name())),
            ("POST", "/v1beta1/uploads/x", Operation::Nothing),
        ] {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            assert_eq!(operation(&method, path), expected, "{method} {path}");
        }
    }
}
