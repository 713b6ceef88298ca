//! The image that a tag of an ImageStream has, as OpenShift's image controllers report it in the stream's status. Pure.
//!
//! Not here: a DataVolume that names a stream; OpenShift resolves the name in the importer's pod.

use serde_json::Value;

use crate::storage::seen::text;

/// Annotation of crons: reference of the image that the stream's tag had at the last poll.
pub const REFERENCE: &str = "cdi.kubevirt.io/storage.import.imageStreamDockerRef";
/// The tag where none is named.
const LATEST: &str = "latest";

/// An image of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Its digest.
    pub digest: String,
    /// Its reference, without a scheme.
    pub reference: String,
}

/// Name and tag of the stream in `spec.template.spec.source.registry.imageStream`: `NAME` or `NAME:TAG`.
pub fn name(stream: &str) -> (&str, &str) {
    stream.split_once(':').unwrap_or((stream, LATEST))
}

/// The newest image of a tag.
///
/// # Errors
/// When the stream has none, with the remedy.
pub fn image(stream: &Value, tag: &str) -> Result<Image, String> {
    let mut tags = stream["status"]["tags"].as_array().into_iter().flatten();
    let newest = tags.find(|one| one["tag"] == tag).map(|one| &one["items"][0]);
    let image = newest.map(|newest| Image {
        digest: text(&newest["image"]),
        reference: text(&newest["dockerImageReference"]),
    });
    let known = image.filter(|image| !image.digest.is_empty() && !image.reference.is_empty());
    known.ok_or_else(|| {
        let name = &stream["metadata"]["name"];
        format!("ImageStream {name} has no image with tag {tag:?}: import one into it, or name another tag")
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_newest_image_of_the_named_tag_is_found() {
        let item =
            |digest: &str| json!({"image": digest, "dockerImageReference": format!("quay.io/a/b@{digest}")});
        let stream = json!({"metadata": {"name": "fedora"}, "status": {"tags": [
            {"tag": "41", "items": [item("sha256:2"), item("sha256:1")]},
            {"tag": "latest", "items": [item("sha256:3")]},
            {"tag": "empty", "items": null},
        ]}});
        for (named, digest) in [("fedora", Some("sha256:3")), ("fedora:41", Some("sha256:2"))]
            .into_iter()
            .chain([("fedora:empty", None), ("fedora:40", None)])
        {
            let (name, tag) = name(named);
            assert_eq!(name, "fedora");
            let found = image(&stream, tag);
            assert_eq!(found.as_ref().ok().map(|image| image.digest.as_str()), digest, "{named}: {found:?}");
            if let Ok(found) = found {
                assert_eq!(found.reference, format!("quay.io/a/b@{}", found.digest));
            }
        }
        let none = image(&json!({"metadata": {"name": "fedora"}}), "41").unwrap_err();
        assert!(none.starts_with("ImageStream \"fedora\" has no image with tag \"41\""), "{none}");
    }
}
