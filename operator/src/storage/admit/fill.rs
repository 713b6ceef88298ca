//! Admission of the sources that claims name in `dataSourceRef`: VolumeImportSource and VolumeUploadSource. Pure.

use serde_json::{Value, json};

use super::{Verdict, archive, cause, content, kind, short_name};

/// Judges a new VolumeImportSource.
///
/// # Errors
/// The first cause to refuse it.
pub fn import(object: &Value) -> Verdict {
    short_name("VolumeImportSource", "metadata.name", &object["metadata"]["name"])?;
    let spec = &object["spec"];
    let archive = archive(spec)?;
    let source = kind("VolumeImport", &spec["source"])?;
    content(source, &spec["source"][source], archive, &json!({}))
}

/// Judges a new VolumeUploadSource.
///
/// # Errors
/// The first cause to refuse it.
pub fn upload(object: &Value) -> Verdict {
    short_name("VolumeUploadSource", "metadata.name", &object["metadata"]["name"])?;
    archive(&object["spec"]).map(drop)
}

/// Judges a new ObjectTransfer.
///
/// # Errors
/// The first cause to refuse it.
pub fn transfer(object: &Value) -> Verdict {
    let (source, target) = (&object["spec"]["source"], &object["spec"]["target"]);
    if target["namespace"].is_null() && target["name"].is_null() {
        return Err(cause("spec.target", "Target namespace and/or target name must be supplied"));
    }
    match source["kind"].as_str() {
        Some("DataVolume" | "PersistentVolumeClaim") => Ok(()),
        kind => {
            let text = format!("Unsupported kind {:?}", kind.unwrap_or_default());
            Err(cause("spec.source.kind", text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_that_can_fill_pass() {
        for spec in [
            json!({"source": {"http": {"url": "https://a/b"}}, "contentType": "archive"}),
            json!({"source": {"registry": {"url": "docker://a/b"}}}),
            json!({"source": {"blank": {}}}),
        ] {
            assert_eq!(import(&json!({"metadata": {"name": "s"}, "spec": spec})), Ok(()), "{spec}");
        }
        for spec in [json!({}), json!({"contentType": "kubevirt"})] {
            assert_eq!(upload(&json!({"metadata": {"name": "s"}, "spec": spec})), Ok(()), "{spec}");
        }
        let transfer_of = json!({"spec": {"source": {"kind": "DataVolume"}, "target": {"namespace": "b"}}});
        assert_eq!(transfer(&transfer_of), Ok(()));
    }

    #[test]
    fn sources_that_cannot_fill_are_refused_with_their_field() {
        for (spec, field, message) in [
            (json!({"contentType": "iso"}), "spec.contentType", "ContentType not one of"),
            (json!({}), "spec.source", "Missing VolumeImport source"),
            (
                json!({"source": {"blank": {}, "http": {"url": "https://a"}}}),
                "spec.source",
                "Multiple VolumeImport sources",
            ),
            (json!({"source": {"http": {"url": ""}}}), "spec.source.http.url", "source URL is empty"),
            (json!({"source": {"vddk": {}}}), "spec.source.vddk", "is not supported"),
            (json!({"source": {"glance": {}}}), "spec.source.glance", "is not supported"),
        ] {
            let found = import(&json!({"metadata": {"name": "s"}, "spec": spec})).unwrap_err();
            assert_eq!(found.field, field, "{spec}");
            assert!(found.message.contains(message), "{found:?}");
        }
        let long = json!({"metadata": {"name": "a".repeat(64)}, "spec": {}});
        assert_eq!(upload(&long).unwrap_err().field, "metadata.name");
        assert_eq!(transfer(&json!({"spec": {}})).unwrap_err().field, "spec.target");
        let pod = json!({"spec": {"source": {"kind": "Pod"}, "target": {"name": "b"}}});
        assert_eq!(transfer(&pod).unwrap_err().message, "Unsupported kind \"Pod\"");
        let found =
            super::super::update("VolumeImportSource", &json!({"spec": {}}), &json!({"spec": {"a": 1}}));
        assert_eq!(found.unwrap_err().message, "Cannot update VolumeImportSource Spec");
    }
}
