//! Objects for OpenShift, created only in clusters that have their kinds, so they are not among [`super::manifests`]:
//! security context constraints, the Route of client downloads, and the console's links to them.

use api::downloads::{self, ALL};
use serde_json::{Value, json};

use super::accounts::{AGENT, HOSTPATH, OPERATOR};
use super::{label, object, user, with};

/// Name of the console's object, upstream's.
pub(crate) const LINKS: &str = "virtctl-clidownloads-kubevirt-hyperconverged";
/// Names of the security context constraints.
pub(crate) const CONSTRAINTS: [&str; 3] = [OPERATOR, AGENT, "hostpath-provisioner-csi"];

/// Group and version of the constraints.
const SECURITY: &str = "security.openshift.io/v1";

/// Everything that needs no fact of the cluster.
pub(crate) fn objects(namespace: &str) -> Vec<Value> {
    let mut all = constraints(namespace);
    all.push(route(namespace));
    all.iter_mut().for_each(label);
    all
}

/// Rights of pods of the platform's accounts: launchers are made by the operator's, and get those of upstream's.
fn constraints(namespace: &str) -> Vec<Value> {
    let any = json!({"type": "RunAsAny"});
    let constraint = |name: &str, account: &str, privileged: bool, fields: Value| {
        let base = json!({
            "allowPrivilegedContainer": privileged,
            "allowPrivilegeEscalation": privileged,
            "allowHostDirVolumePlugin": true,
            "allowHostIPC": false,
            "allowHostNetwork": false,
            "allowHostPorts": false,
            "fsGroup": any,
            "runAsUser": any,
            "seLinuxContext": any,
            "supplementalGroups": any,
            "volumes": ["*"],
            "users": [user(namespace, account)],
        });
        with(with(object(SECURITY, "SecurityContextConstraints", name, None), base), fields)
    };
    let [controller, handler, driver] = CONSTRAINTS;
    vec![
        constraint(
            controller,
            OPERATOR,
            false,
            json!({
                "allowHostPID": false,
                "readOnlyRootFilesystem": false,
                "allowedCapabilities": ["SYS_NICE", "NET_BIND_SERVICE"],
                "seccompProfiles": ["runtime/default", "unconfined", "localhost/kubevirt/kubevirt.json"],
            }),
        ),
        constraint(
            handler,
            AGENT,
            true,
            json!({"allowHostPID": true, "readOnlyRootFilesystem": false, "seccompProfiles": ["*"]}),
        ),
        constraint(
            driver,
            HOSTPATH,
            true,
            json!({"allowHostPID": false, "readOnlyRootFilesystem": false, "seccompProfiles": ["*"]}),
        ),
    ]
}

/// Client downloads from outside: TLS ends at the router.
fn route(namespace: &str) -> Value {
    with(
        object("route.openshift.io/v1", "Route", downloads::SERVICE, Some(namespace)),
        json!({"spec": {
            "port": {"targetPort": downloads::PORT},
            "tls": {"termination": "edge", "insecureEdgeTerminationPolicy": "Redirect"},
            "to": {"kind": "Service", "name": downloads::SERVICE, "weight": 100},
        }}),
    )
}

/// The console's links to the downloads at a host.
pub(crate) fn links(host: &str) -> Value {
    let link = |one: &downloads::Download| {
        json!({
            "href": format!("https://{host}/{}", one.path),
            "text": format!("Download virtctl for {}", one.platform),
        })
    };
    let mut links = with(
        object("console.openshift.io/v1", "ConsoleCLIDownload", LINKS, None),
        json!({"spec": {
            "displayName": "virtctl - KubeVirt command line interface",
            "description": "The virtctl client starts, stops and reaches virtual machines from the command line.",
            "links": ALL.iter().map(link).collect::<Vec<_>>(),
        }}),
    );
    label(&mut links);
    links
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn objects_are_those_recorded() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/openshift.yaml");
        let mut all = objects("kubevirt-hyperconverged");
        all.push(links("downloads.example.com"));
        let text = super::super::yaml(&all).unwrap();
        if std::env::var_os("FERROVIRT_BLESS").is_some() {
            fs::write(&path, &text).unwrap();
        }
        assert_eq!(text, fs::read_to_string(&path).unwrap(), "FERROVIRT_BLESS=1 records what is made now");
    }

    #[test]
    fn launchers_get_two_capabilities_at_most_and_no_privileges() {
        let all = objects("ns");
        let one = all.iter().find(|one| one["metadata"]["name"] == "kubevirt-controller").unwrap();
        assert_eq!(one["allowPrivilegedContainer"], false);
        assert_eq!(one["allowHostDirVolumePlugin"], true);
        assert_eq!(one["allowedCapabilities"], json!(["SYS_NICE", "NET_BIND_SERVICE"]));
        assert_eq!(one["users"], json!(["system:serviceaccount:ns:kubevirt-controller"]));
    }
}
