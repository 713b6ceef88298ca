//! The project's images in pods of the restricted profile that set `runAsNonRoot` and no user: upstream's manifests run
//! these programs so.

use serde_json::{Value, json};

use crate::platform::place::{PLACE, PODS};

/// Where the test's pods are.
const SPACE: &str = "images";

#[test]
fn images_start_in_restricted_pods_without_a_user() {
    PLACE.namespace(SPACE);
    let programs: [(&str, &[&str]); 7] = [
        ("importer", &["/usr/bin/importer"]),
        ("cdi-source-update-poller", &["/usr/bin/cdi-source-update-poller"]),
        ("uploadserver", &["/usr/bin/uploadserver"]),
        ("uploadproxy", &["/usr/bin/uploadproxy"]),
        ("clone-source", &["/usr/bin/clone-source"]),
        // The path in upstream's image.
        ("macpool", &["/manager"]),
        ("operator", &["/usr/bin/operator"]),
    ];
    for (name, command) in programs {
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "restartPolicy": "Never",
                "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
                "containers": [{
                    "name": "program",
                    "image": format!("localhost/ferrovirt:{name}"),
                    "imagePullPolicy": "IfNotPresent",
                    "command": command,
                    "args": ["--help"],
                    "securityContext": {
                        "allowPrivilegeEscalation": false,
                        "capabilities": {"drop": ["ALL"]},
                        "readOnlyRootFilesystem": true,
                    },
                }],
            },
        });
        PLACE.create(PODS, SPACE, &pod);
    }
    for (name, _) in programs {
        PLACE.until(SPACE, &format!("the end of {name}"), || {
            let pod: Value =
                PLACE.list(PODS, SPACE).into_iter().find(|pod| pod["metadata"]["name"] == name)?;
            let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"];
            assert_ne!(waiting, "CreateContainerConfigError", "{pod}");
            assert_ne!(pod["status"]["phase"], "Failed", "{pod}");
            (pod["status"]["phase"] == "Succeeded").then_some(())
        });
    }
    PLACE.remove_namespace(SPACE);
}
