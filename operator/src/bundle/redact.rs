//! Removes from an object what may be confidential or is only noise. Pure.

use serde_json::Value;

/// Fields that hold passwords, keys or scripts with passwords, wherever they are.
const FIELDS: [&str; 9] = [
    "userData",
    "userDataBase64",
    "networkData",
    "networkDataBase64",
    "extraHeaders",
    "password",
    "token",
    "tls.key",
    "accessCredentials",
];
/// Annotations with tokens, or with a copy of the object.
const ANNOTATIONS: [&str; 3] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    "cdi.kubevirt.io/storage.clone.token",
    "cdi.kubevirt.io/storage.extended.clone.token",
];
/// The replacement of a removed value.
const REPLACED: &str = "(removed)";

pub(super) fn redact(object: &mut Value) {
    let metadata = object["metadata"].as_object_mut();
    if let Some(metadata) = metadata {
        metadata.remove("managedFields");
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.retain(|name, _| !ANNOTATIONS.contains(&name.as_str()));
        }
    }
    walk(object);
}

fn walk(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                if FIELDS.contains(&name.as_str()) && !field.is_null() {
                    *field = Value::String(REPLACED.to_owned());
                } else {
                    walk(field);
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(walk),
        // A credential in a URL.
        Value::String(text) => {
            if let Some((scheme, rest)) = text.split_once("://")
                && let Some((authority, tail)) = rest.split_once('@')
                && !authority.contains('/')
            {
                *text = format!("{scheme}://{REPLACED}@{tail}");
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn confidential_fields_are_replaced_and_others_kept() {
        let mut object = json!({
            "metadata": {
                "name": "a",
                "managedFields": [{}],
                "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "x", "kept": "y"},
            },
            "spec": {
                "volumes": [{"cloudInitNoCloud": {"userData": "#cloud-config\npassword: hunter2", "secretRef": {"name": "s"}}}],
                "source": {"http": {"url": "https://me:hunter2@host/a@b", "extraHeaders": ["Authorization: hunter2"]}},
                "plain": "https://host/path@2x",
            },
        });
        redact(&mut object);
        assert!(!object.to_string().contains("hunter2"), "{object}");
        assert_eq!(object["metadata"], json!({"name": "a", "annotations": {"kept": "y"}}));
        assert_eq!(object["spec"]["volumes"][0]["cloudInitNoCloud"]["secretRef"]["name"], "s");
        assert_eq!(object["spec"]["source"]["http"]["url"], "https://(removed)@host/a@b");
        assert_eq!(object["spec"]["plain"], "https://host/path@2x");
    }
}
