//! OpenAPI descriptions of the group subresources.kubevirt.io: a path and an operation for each subresource. Pure. Bodies are
//! not described, as upstream.

use serde_json::{Map, Value, json};

use super::group::{GROUP, VERSIONS};

/// A subresource that is served.
#[derive(Debug)]
pub(super) struct Served {
    /// Its name in discovery, such as `virtualmachines/start`.
    pub(super) name: String,
    pub(super) read: bool,
    pub(super) namespaced: bool,
}

impl Served {
    /// The verb that RBAC has for it.
    pub(super) fn verb(&self) -> &'static str {
        if self.read { "get" } else { "update" }
    }

    /// The HTTP method, as OpenAPI writes it.
    fn method(&self) -> &'static str {
        if self.read { "get" } else { "put" }
    }

    /// The path behind the version, of a forwarded port without the port.
    fn path(&self) -> String {
        match (self.namespaced, self.name.split_once('/')) {
            (false, _) => format!("/{}", self.name),
            (true, None) => format!("/namespaces/{{namespace}}/{}", self.name),
            (true, Some((plural, name))) => format!("/namespaces/{{namespace}}/{plural}/{{name}}/{name}"),
        }
    }
}

/// Both forms of the specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    V2,
    V3,
}

/// The description of all versions as OpenAPI 2.
pub(super) fn v2(served: &[Served]) -> Value {
    let paths: Map<String, Value> =
        VERSIONS.iter().flat_map(|version| paths(served, version, Form::V2)).collect();
    json!({"swagger": "2.0", "info": {"title": GROUP, "version": VERSIONS[0]}, "paths": paths, "definitions": {}})
}

/// The description of a version as OpenAPI 3.
pub(super) fn v3(served: &[Served], version: &str) -> Value {
    let paths = paths(served, version, Form::V3);
    json!({"openapi": "3.0.0", "info": {"title": GROUP, "version": version}, "paths": paths, "components": {}})
}

fn paths(served: &[Served], version: &str, form: Form) -> Map<String, Value> {
    let of = |one: &Served| {
        let base = format!("/apis/{GROUP}/{version}{}", one.path());
        // Port and protocol are part of the path, and of no name of a resource.
        let ends: &[&str] = match one.name.ends_with("/portforward") {
            true => &["/{port}", "/{port}/{protocol}"],
            false => &[""],
        };
        let item = |end: &str| {
            let path = format!("{base}{end}");
            let item = item(one, version, &path, form);
            (path, item)
        };
        ends.iter().map(|end| item(end)).collect::<Vec<_>>()
    };
    served.iter().flat_map(of).collect()
}

fn item(one: &Served, version: &str, path: &str, form: Form) -> Value {
    let (kind, short) = match one.name.split_once('/') {
        Some(("virtualmachines", _)) => ("VirtualMachine", "vm"),
        Some(_) => ("VirtualMachineInstance", "vmi"),
        None => ("", ""),
    };
    // One operation per path: the depth distinguishes those of a forwarded port.
    let depth = path.matches("/{").count();
    let name = one.name.split_once('/').map_or(one.name.as_str(), |(_, name)| name).replace('/', "-");
    let id = if depth > 3 {
        format!("{version}{short}-{name}-protocol")
    } else {
        format!("{version}{short}-{name}")
    };
    let mut operation = json!({
        "operationId": id,
        "responses": {"200": {"description": "OK"}, "401": {"description": "Unauthorized"}},
    });
    if !kind.is_empty() {
        operation["x-kubernetes-group-version-kind"] =
            json!({"group": GROUP, "version": version, "kind": kind});
    }
    let parameter = |name: &str| {
        let mut parameter = json!({"in": "path", "name": name, "required": true});
        match form {
            Form::V2 => parameter["type"] = json!("string"),
            Form::V3 => parameter["schema"] = json!({"type": "string"}),
        }
        parameter
    };
    let names = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let mut item = json!({one.method(): operation});
    let parameters: Vec<Value> = names.map(parameter).collect();
    if !parameters.is_empty() {
        item["parameters"] = json!(parameters);
    }
    item
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::discovery::served;
    use super::*;

    #[test]
    fn every_subresource_has_an_operation_of_its_own() {
        let served = served();
        let document = v3(&served, "v1");
        let paths = document["paths"].as_object().unwrap();
        // Ports of VMs and instances have two paths each.
        assert_eq!(paths.len(), served.len() + 2);
        let base = "/apis/subresources.kubevirt.io/v1/namespaces/{namespace}";
        for (path, method, id, kind, parameters) in [
            ("/virtualmachines/{name}/start", "put", "v1vm-start", "VirtualMachine", 2),
            (
                "/virtualmachineinstances/{name}/vnc/screenshot",
                "get",
                "v1vmi-vnc-screenshot",
                "VirtualMachineInstance",
                2,
            ),
            ("/virtualmachines/{name}/portforward/{port}", "get", "v1vm-portforward", "VirtualMachine", 3),
            (
                "/virtualmachineinstances/{name}/portforward/{port}/{protocol}",
                "get",
                "v1vmi-portforward-protocol",
                "VirtualMachineInstance",
                4,
            ),
        ] {
            let item = &paths[&format!("{base}{path}")];
            assert_eq!(item[method]["operationId"], id);
            let expected = json!({"group": "subresources.kubevirt.io", "version": "v1", "kind": kind});
            assert_eq!(item[method]["x-kubernetes-group-version-kind"], expected);
            assert_eq!(item["parameters"].as_array().unwrap().len(), parameters, "{path}");
            assert_eq!(item["parameters"][0]["schema"]["type"], "string");
        }
        assert!(paths[&format!("{base}/expand-vm-spec")]["put"].is_object());
        assert!(paths["/apis/subresources.kubevirt.io/v1/version"]["get"].is_object());
    }

    #[test]
    fn operations_of_all_versions_have_different_names() {
        let document = v2(&served());
        let mut ids = BTreeSet::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            let operation = item.get("get").or_else(|| item.get("put")).unwrap();
            assert!(ids.insert(operation["operationId"].as_str().unwrap()), "{path}: {operation}");
            for parameter in item["parameters"].as_array().into_iter().flatten() {
                assert_eq!(parameter["type"], "string");
            }
        }
        assert!(ids.contains("v1alpha3vmi-console"), "{ids:?}");
    }
}
