//! Admission of DataVolumes: what is refused, one cause at a time, in upstream's order: the claim's form, size, class
//! name, access modes, external population, source or sourceRef, number of sources, content type, then the source.
//! [`cron`] judges DataImportCrons, [`fill`] the sources that claims name.
//!
//! Not here: the schema, which the API server checks first; clone authorization ([`super::clone::authorize`]).

pub mod cron;
pub mod fill;

use serde_json::Value;

use super::names;

/// Longest name of a DataVolume: its claim has the same.
const NAME_MAX: usize = 253;
/// Longest name that is a label's value, too.
const SHORT_NAME_MAX: usize = 63;
/// Access modes of claims.
const ACCESS_MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
/// Sources that volumes are filled from; others that the schema has are refused.
const SOURCES: [&str; 8] = ["http", "s3", "gcs", "registry", "pvc", "upload", "blank", "snapshot"];

/// Why an object is refused: one cause of a Status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// The field's path, such as `spec.source.http.url`.
    pub field: String,
    /// The defect.
    pub message: String,
}

fn cause(field: &str, message: impl Into<String>) -> Cause {
    Cause { field: field.to_owned(), message: message.into() }
}

type Verdict = Result<(), Cause>;

/// Judges a new DataVolume.
///
/// # Errors
/// The first cause to refuse it.
pub fn create(object: &Value) -> Verdict {
    let meta = &object["metadata"];
    if meta["name"].as_str().is_some_and(|name| name.len() > NAME_MAX) {
        return Err(cause(
            "metadata.name",
            format!("Name of data volume cannot be more than {NAME_MAX} characters"),
        ));
    }
    spec(&object["spec"], &meta["annotations"])
}

/// Judges a change of an object of a kind. One that is being deleted may change in any way.
///
/// # Errors
/// When the spec differs.
pub fn update(kind: &str, old: &Value, new: &Value) -> Verdict {
    if new["metadata"]["deletionTimestamp"].is_string()
        || without_nulls(&old["spec"]) == without_nulls(&new["spec"])
    {
        return Ok(());
    }
    Err(cause("spec", format!("Cannot update {kind} Spec")))
}

fn short_name(kind: &str, field: &str, name: &Value) -> Verdict {
    if name.as_str().is_some_and(|name| name.len() > SHORT_NAME_MAX) {
        let text = format!("Name of {kind} cannot be more than {SHORT_NAME_MAX} characters");
        return Err(cause(field, text));
    }
    Ok(())
}

/// A value without fields that are null: absent and null are the same.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(name, value)| (name.clone(), without_nulls(value))).collect())
        }
        Value::Array(list) => Value::Array(list.iter().map(without_nulls).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

fn spec(spec: &Value, annotations: &Value) -> Verdict {
    let form = match (spec["pvc"].is_object(), spec["storage"].is_object()) {
        (false, false) => return Err(cause("spec.PVC", "Missing Data volume PVC")),
        (true, true) => {
            return Err(cause(
                "spec.PVC",
                "Duplicate storage definition, both target storage and target pvc defined",
            ));
        }
        (true, false) => "pvc",
        (false, true) => "storage",
    };
    let claim = &spec[form];
    size(claim, form, &spec["source"], !spec["sourceRef"].is_null())?;
    class_name(claim, form)?;
    access_modes(claim, form)?;
    let external = annotations[names::EXTERNAL_POPULATION] == "true";
    let named = [&claim["dataSource"], &claim["dataSourceRef"]].into_iter().any(Value::is_object);
    let (source, reference) = (spec["source"].is_object(), spec["sourceRef"].is_object());
    if external || named {
        if source || reference {
            return Err(cause(
                "spec.source",
                "External population is incompatible with Source and SourceRef",
            ));
        }
        return Ok(());
    }
    match (source, reference) {
        (false, false) | (true, true) => {
            return Err(cause("spec.source", "Data volume should have either Source or SourceRef"));
        }
        (false, true) => return source_ref(&spec["sourceRef"]),
        (true, false) => {}
    }
    let kind = kind("dataVolume", &spec["source"])?;
    content(kind, &spec["source"][kind], archive(spec)?, claim)
}

/// The one source that is given.
fn kind<'a>(of: &str, source: &'a Value) -> Result<&'a str, Cause> {
    let kinds: Vec<&String> = source
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(_, value)| !value.is_null())
        .map(|(kind, _)| kind)
        .collect();
    match kinds.as_slice() {
        [] => Err(cause("spec.source", format!("Missing {of} source"))),
        [kind] => Ok(kind.as_str()),
        _ => Err(cause("spec.source", format!("Multiple {of} sources"))),
    }
}

/// Whether the content is an archive.
fn archive(spec: &Value) -> Result<bool, Cause> {
    match spec["contentType"].as_str() {
        None | Some("" | "kubevirt") => Ok(false),
        Some("archive") => Ok(true),
        Some(_) => Err(cause("spec.contentType", "ContentType not one of: kubevirt, archive")),
    }
}

fn size(claim: &Value, form: &str, source: &Value, referenced: bool) -> Verdict {
    let field = format!("spec.{form}.resources.requests.storage");
    let storage = &claim["resources"]["requests"]["storage"];
    let size = match storage {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => {
            // The size of a clone is its source's.
            let clones = referenced || source["pvc"].is_object() || source["snapshot"].is_object();
            if form == "storage" && clones {
                return Ok(());
            }
            return Err(cause(&field, "PVC size is missing"));
        }
    };
    match api::quantity::bytes(&size) {
        Ok(0) => Err(cause(&field, "PVC size can't be equal or less than zero")),
        Ok(_) => Ok(()),
        Err(_) if size.starts_with('-') => Err(cause(&field, "PVC size can't be equal or less than zero")),
        Err(error) => Err(cause(&field, format!("PVC size {size:?}: {error}"))),
    }
}

fn class_name(claim: &Value, form: &str) -> Verdict {
    let Some(name) = claim["storageClassName"].as_str().filter(|name| !name.is_empty()) else {
        return Ok(());
    };
    let label = |part: &str| {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        part.starts_with(plain) && part.ends_with(plain) && part.chars().all(|c| plain(c) || c == '-')
    };
    if name.len() <= NAME_MAX && name.split('.').all(label) {
        return Ok(());
    }
    Err(cause(
        &format!("spec.{form}.storageClassName"),
        format!("Invalid value: {name:?}: not the name of an object"),
    ))
}

fn access_modes(claim: &Value, form: &str) -> Verdict {
    let field = format!("spec.{form}.accessModes");
    let modes = claim["accessModes"].as_array().map(Vec::as_slice).unwrap_or_default();
    if form == "pvc" && modes.is_empty() {
        return Err(cause(&field, "Required value: at least 1 access mode is required"));
    }
    match modes.iter().find(|mode| mode.as_str().is_none_or(|mode| !ACCESS_MODES.contains(&mode))) {
        Some(mode) => {
            let supported = ACCESS_MODES.join(", ");
            Err(cause(&field, format!("Unsupported value: {mode}: supported values: {supported}")))
        }
        None => Ok(()),
    }
}

fn source_ref(reference: &Value) -> Verdict {
    if reference["kind"] != "DataSource" {
        let kind = reference["kind"].as_str().unwrap_or_default();
        return Err(cause(
            "spec.sourceRef.kind",
            format!("Unsupported sourceRef kind {kind}, supported: DataSource"),
        ));
    }
    if reference["name"].as_str().unwrap_or_default().is_empty() {
        return Err(cause("spec.sourceRef.name", "Missing sourceRef name"));
    }
    Ok(())
}

fn content(kind: &str, source: &Value, archive: bool, claim: &Value) -> Verdict {
    let at = |field: &str| format!("spec.source.{kind}{field}");
    if !SOURCES.contains(&kind) {
        return Err(cause(&at(""), format!("source {kind} is not supported")));
    }
    if archive && claim["volumeMode"] == "Block" {
        return Err(cause("spec.contentType", "ContentType archive needs volumeMode Filesystem"));
    }
    match kind {
        "http" => {
            url(&at(".url"), source, &["http", "https"]).and_then(|()| checksum(&at(".checksum"), source))
        }
        "s3" => url(&at(".url"), source, &["http", "https", "s3"]),
        "gcs" => {
            url(&at(".url"), source, &["http", "https", "gs"]).and_then(|()| object(&at(".url"), source))
        }
        "blank" if archive => {
            Err(cause("spec.contentType", "SourceType cannot be blank and the contentType be archive"))
        }
        "registry" if archive => {
            Err(cause("spec.contentType", "ContentType must be kubevirt when Source is Registry"))
        }
        "registry" => registry(source),
        "pvc" | "snapshot" if archive => {
            Err(cause("spec.contentType", format!("ContentType must be kubevirt when Source is {kind}")))
        }
        "pvc" | "snapshot" => match ["namespace", "name"].into_iter().find(|field| empty(&source[*field])) {
            Some(field) => {
                Err(cause(&at(&format!(".{field}")), format!("Required value: the source's {field}")))
            }
            None => Ok(()),
        },
        _ => Ok(()),
    }
}

fn empty(value: &Value) -> bool {
    value.as_str().unwrap_or_default().is_empty()
}

fn url(field: &str, source: &Value, schemes: &[&str]) -> Verdict {
    let Some(url) = source["url"].as_str().filter(|url| !url.is_empty()) else {
        return Err(cause(field, "source URL is empty"));
    };
    let Some((scheme, rest)) = url.split_once("://") else {
        return Err(cause(field, format!("Invalid source URL: {url}")));
    };
    if !schemes.contains(&scheme) {
        return Err(cause(field, format!("Invalid source URL scheme: {url}")));
    }
    // The authority ends where path, query or fragment begin.
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if host.is_empty() || url.chars().any(|c| c.is_control() || c == ' ') {
        return Err(cause(field, format!("Invalid source URL: {url}")));
    }
    Ok(())
}

/// Whether the address of a Google Cloud Storage source names an object in a bucket: an importer would look for one for
/// ever.
fn object(field: &str, source: &Value) -> Verdict {
    let url = source["url"].as_str().unwrap_or_default();
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    let (host, path) =
        rest.split(['?', '#']).next().and_then(|rest| rest.split_once('/')).unwrap_or_default();
    let object = match scheme == "gs" || host.ends_with(".storage.googleapis.com") {
        true => path,
        false => path.split_once('/').map(|(_, object)| object).unwrap_or_default(),
    };
    if object.is_empty() {
        let message = format!(
            "Invalid source URL: {url}: expected gs://bucket/object or https://storage.googleapis.com/bucket/object"
        );
        return Err(cause(field, message));
    }
    Ok(())
}

/// Digits of a checksum by its algorithm.
const CHECKSUMS: [(&str, usize); 4] = [("md5", 32), ("sha1", 40), ("sha256", 64), ("sha512", 128)];

fn checksum(field: &str, source: &Value) -> Verdict {
    let Some(checksum) = source["checksum"].as_str().filter(|checksum| !checksum.is_empty()) else {
        return Ok(());
    };
    let parts = checksum.split_once(':');
    let fits = parts.is_some_and(|(algorithm, digits)| {
        let length = CHECKSUMS.iter().find(|(name, _)| *name == algorithm).map(|(_, length)| *length);
        length == Some(digits.len()) && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
    });
    if fits {
        return Ok(());
    }
    Err(cause(
        field,
        "Invalid checksum: expected md5, sha1, sha256 or sha512, a colon and the digits in hexadecimal",
    ))
}

fn registry(source: &Value) -> Verdict {
    let field = "spec.source.registry";
    let (url, stream) = (source["url"].as_str(), source["imageStream"].as_str());
    let url = match (url, stream) {
        (None, None) | (Some(_), Some(_)) => {
            return Err(cause(field, "source registry should have either url or imageStream"));
        }
        (None, Some(_)) if source["pullMethod"] != "node" => {
            return Err(cause(
                field,
                "source registry imageStream is supported only with node pull import method",
            ));
        }
        (None, Some("")) => return Err(cause(field, "source registry imageStream is not valid")),
        (None, Some(_)) => return Ok(()),
        (Some(url), None) => url,
    };
    if !matches!(source["pullMethod"].as_str(), None | Some("" | "pod" | "node")) {
        return Err(cause(
            &format!("{field}.pullMethod"),
            "source registry pullMethod is not one of: pod, node",
        ));
    }
    let (scheme, rest) = url.split_once(':').unwrap_or_default();
    match scheme {
        "docker" if rest.strip_prefix("//").is_some_and(|image| !image.is_empty()) => Ok(()),
        "oci-archive" if source["pullMethod"] == "node" => {
            Err(cause(&format!("{field}.url"), "oci-archive is not supported with node pull import method"))
        }
        "oci-archive" if !rest.is_empty() => Ok(()),
        "docker" | "oci-archive" => {
            Err(cause(&format!("{field}.url"), format!("Illegal registry source URL: {url}")))
        }
        _ => Err(cause(&format!("{field}.url"), format!("Illegal registry source URL scheme: {url}"))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn volume(spec: &Value) -> Value {
        json!({"metadata": {"name": "d"}, "spec": spec})
    }

    fn with_source(source: &Value) -> Value {
        json!({"storage": {"resources": {"requests": {"storage": "1Gi"}}}, "source": source})
    }

    #[test]
    fn valid_volumes_pass() {
        let digits = "0".repeat(32);
        for source in [
            json!({"http": {"url": "https://a/b?c", "checksum": format!("md5:{digits}")}}),
            json!({"s3": {"url": "s3://bucket/a"}}),
            json!({"gcs": {"url": "gs://bucket/a"}}),
            json!({"gcs": {"url": "https://storage.googleapis.com/bucket/a"}}),
            json!({"gcs": {"url": "https://bucket.storage.googleapis.com/a"}}),
            json!({"gcs": {"url": "http://emulator:4443/bucket/a"}}),
            json!({"registry": {"url": "docker://a/b:c"}}),
            json!({"registry": {"url": "oci-archive:/a"}}),
            json!({"registry": {"imageStream": "fedora:41", "pullMethod": "node"}}),
            json!({"blank": {}}),
            json!({"upload": {}, "http": null}),
            json!({"pvc": {"namespace": "a", "name": "b"}}),
            json!({"snapshot": {"namespace": "a", "name": "b"}}),
        ] {
            assert_eq!(create(&volume(&with_source(&source))), Ok(()), "{source}");
        }
        let clone = json!({"storage": {}, "source": {"pvc": {"namespace": "a", "name": "b"}}});
        assert_eq!(create(&volume(&clone)), Ok(()));
        let reference = json!({"storage": {}, "sourceRef": {"kind": "DataSource", "name": "a"}});
        assert_eq!(create(&volume(&reference)), Ok(()));
        let external = json!({"pvc": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": 5}},
            "dataSourceRef": {"kind": "K", "name": "a"}}});
        assert_eq!(create(&volume(&external)), Ok(()));
        let mut annotated = volume(&json!({"storage": {"resources": {"requests": {"storage": "1Gi"}}}}));
        annotated["metadata"]["annotations"] = json!({(names::EXTERNAL_POPULATION): "true"});
        assert_eq!(create(&annotated), Ok(()));
    }

    #[test]
    fn refusals_come_in_a_fixed_order_with_their_field() {
        let size = json!({"resources": {"requests": {"storage": "1Gi"}}});
        let claim = json!({"resources": {"requests": {"storage": "1Gi"}}, "accessModes": ["ReadWriteOnce"]});
        for (spec, field, message) in [
            (json!({}), "spec.PVC", "Missing Data volume PVC"),
            (json!({"pvc": {}, "storage": {}}), "spec.PVC", "Duplicate storage definition"),
            (json!({"pvc": {}}), "spec.pvc.resources.requests.storage", "PVC size is missing"),
            (
                json!({"storage": {"resources": {"requests": {"storage": "0"}}}}),
                "spec.storage.resources.requests.storage",
                "less than zero",
            ),
            (
                json!({"storage": {"resources": {"requests": {"storage": "-1Gi"}}}}),
                "spec.storage.resources.requests.storage",
                "less than zero",
            ),
            (
                json!({"pvc": {"resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "A b"}}),
                "spec.pvc.storageClassName",
                "Invalid value",
            ),
            (json!({"pvc": size}), "spec.pvc.accessModes", "at least 1 access mode"),
            (
                json!({"pvc": {"resources": {"requests": {"storage": "1Gi"}}, "accessModes": ["Mine"]}}),
                "spec.pvc.accessModes",
                "Unsupported value: \"Mine\"",
            ),
            (
                json!({"storage": {"resources": {"requests": {"storage": "1Gi"}}, "dataSourceRef": {}}, "source": {"blank": {}}}),
                "spec.source",
                "External population",
            ),
            (json!({"pvc": claim}), "spec.source", "either Source or SourceRef"),
            (
                json!({"pvc": claim, "source": {"blank": {}}, "sourceRef": {"kind": "DataSource"}}),
                "spec.source",
                "either Source or SourceRef",
            ),
            (
                json!({"pvc": claim, "sourceRef": {"kind": "Pod", "name": "a"}}),
                "spec.sourceRef.kind",
                "Unsupported sourceRef kind Pod",
            ),
            (
                json!({"pvc": claim, "sourceRef": {"kind": "DataSource", "name": ""}}),
                "spec.sourceRef.name",
                "Missing sourceRef name",
            ),
            (json!({"pvc": claim, "source": {}}), "spec.source", "Missing dataVolume source"),
            (
                json!({"pvc": claim, "source": {"blank": {}, "upload": {}}}),
                "spec.source",
                "Multiple dataVolume sources",
            ),
            (
                json!({"pvc": claim, "source": {"blank": {}}, "contentType": "iso"}),
                "spec.contentType",
                "ContentType not one of: kubevirt, archive",
            ),
            (
                json!({"pvc": claim, "source": {"blank": {}}, "contentType": "archive"}),
                "spec.contentType",
                "SourceType cannot be blank",
            ),
            (
                json!({"pvc": claim, "source": {"vddk": {}}}),
                "spec.source.vddk",
                "source vddk is not supported",
            ),
            (
                json!({"pvc": claim, "source": {"glance": {}}}),
                "spec.source.glance",
                "source glance is not supported",
            ),
            (
                json!({"pvc": claim, "source": {"imageio": {}}}),
                "spec.source.imageio",
                "source imageio is not supported",
            ),
        ] {
            let refused = create(&volume(&spec)).unwrap_err();
            assert_eq!(refused.field, field, "{spec}");
            assert!(refused.message.contains(message), "{spec}: {}", refused.message);
        }
        let long = json!({"metadata": {"name": "x".repeat(254)}, "spec": {}});
        assert_eq!(create(&long).unwrap_err().field, "metadata.name");
    }

    #[test]
    fn sources_are_judged_by_their_fields() {
        for (source, field, message) in [
            (json!({"http": {"url": ""}}), "http.url", "source URL is empty"),
            (json!({"http": {"url": "a/b"}}), "http.url", "Invalid source URL: a/b"),
            (json!({"http": {"url": "http:///b"}}), "http.url", "Invalid source URL"),
            (json!({"http": {"url": "ftp://a/b"}}), "http.url", "Invalid source URL scheme"),
            (json!({"gcs": {"url": "s3://a/b"}}), "gcs.url", "Invalid source URL scheme"),
            (json!({"gcs": {"url": "gs://a"}}), "gcs.url", "expected gs://bucket/object"),
            (
                json!({"gcs": {"url": "https://storage.googleapis.com/a?b/c"}}),
                "gcs.url",
                "expected gs://bucket/object",
            ),
            (json!({"http": {"url": "http://a", "checksum": "md5:0"}}), "http.checksum", "Invalid checksum"),
            (json!({"http": {"url": "http://a", "checksum": "crc:00"}}), "http.checksum", "Invalid checksum"),
            (json!({"registry": {}}), "registry", "either url or imageStream"),
            (
                json!({"registry": {"url": "docker://a", "imageStream": "b"}}),
                "registry",
                "either url or imageStream",
            ),
            (json!({"registry": {"imageStream": "b"}}), "registry", "only with node pull"),
            (json!({"registry": {"imageStream": "", "pullMethod": "node"}}), "registry", "is not valid"),
            (json!({"registry": {"url": "http://a"}}), "registry.url", "Illegal registry source URL scheme"),
            (json!({"registry": {"url": "docker://"}}), "registry.url", "Illegal registry source URL"),
            (
                json!({"registry": {"url": "docker://a", "pullMethod": "x"}}),
                "registry.pullMethod",
                "not one of",
            ),
            (
                json!({"registry": {"url": "oci-archive:/a", "pullMethod": "node"}}),
                "registry.url",
                "not supported with node pull",
            ),
            (json!({"pvc": {"namespace": "a", "name": ""}}), "pvc.name", "Required value"),
            (json!({"snapshot": {"name": "a"}}), "snapshot.namespace", "Required value"),
        ] {
            let refused = create(&volume(&with_source(&source))).unwrap_err();
            assert_eq!(refused.field, format!("spec.source.{field}"), "{source}");
            assert!(refused.message.contains(message), "{source}: {}", refused.message);
        }
    }

    #[test]
    fn the_spec_cannot_change() {
        let old = volume(&with_source(&json!({"blank": {}})));
        assert_eq!(update("DataVolume", &old, &old), Ok(()));
        let mut new = old.clone();
        new["spec"]["preallocation"] = Value::Null;
        new["metadata"]["labels"] = json!({"a": "b"});
        assert_eq!(update("DataVolume", &old, &new), Ok(()));
        new["spec"]["preallocation"] = json!(true);
        assert_eq!(update("DataVolume", &old, &new).unwrap_err().message, "Cannot update DataVolume Spec");
        new["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(update("DataVolume", &old, &new), Ok(()));
    }
}
