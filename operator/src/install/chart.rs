//! A Helm chart of everything that is installed, made from the same objects as `operator manifests`.
//!
//! The objects are rendered with marks in place of the namespace, images and other choices; the marks become expressions of
//! Helm. Custom resource definitions are templates that stay when the release is removed.
//!
//! Not in the chart: the namespace, which Helm needs before it installs anything, and the object HyperConverged, whose
//! definition must exist first. NOTES.txt explains how to make both.

use serde_json::{Value, json};

use super::node::{CAPABILITIES, agent, capabilities_security};
use super::{Settings, accounts, manifests, roles, uninstall_hooks, user_roles, workloads, yaml};

/// Marks: what stands between them is a word of [`expression`].
const MARK: &str = "@@";
const NAMESPACE: &str = "namespace-of-the-release";

/// A file of the chart: path below its directory, content.
pub type File = (String, String);

/// All files.
///
/// # Errors
/// When an object cannot be written as YAML; objects of this crate always can.
pub fn files(version: &str) -> Result<Vec<File>, serde_saphyr::SerializeError> {
    let settings = Settings {
        namespace: NAMESPACE.to_owned(),
        image: format!("{MARK}image {{program}}{MARK}"),
        replicas: 2,
        emulation: false,
        sidecars: true,
        cni_directory: format!("{MARK}cni-directory{MARK}"),
        kubelet_directory: format!("{MARK}kubelet-directory{MARK}"),
        shared_networks: format!("{MARK}shared-networks{MARK}"),
        ..Settings::default()
    };
    let mut all = vec![
        ("Chart.yaml".to_owned(), about(version)),
        ("values.yaml".to_owned(), values()?),
        ("templates/NOTES.txt".to_owned(), NOTES.to_owned()),
        ("templates/ingress.yaml".to_owned(), INGRESS.to_owned()),
    ];
    for mut object in manifests(&settings) {
        let kind = object["kind"].as_str().unwrap_or_default().to_lowercase();
        if kind == "namespace" {
            continue;
        }
        mark(&mut object);
        let name = object["metadata"]["name"].as_str().unwrap_or_default().replace([':', '/'], "-");
        let mut text = expressions(&yaml(std::slice::from_ref(&object))?);
        if object["apiVersion"] == roles::RBAC && object["metadata"]["name"] == accounts::HOSTPATH {
            text = format!("{{{{- if .Values.sidecars }}}}\n{text}{{{{- end }}}}\n");
        }
        all.push((format!("templates/{kind}-{name}.yaml").replace(NAMESPACE, "release"), text));
    }
    let hooks = yaml(&uninstall_hooks(&settings))?;
    all.push(("templates/uninstall.yaml".to_owned(), expressions(&hooks)));
    Ok(all)
}

fn about(version: &str) -> String {
    format!(
        "apiVersion: v2\nname: ferrovirt\ndescription: Virtual machines on Kubernetes\ntype: application\n\
         version: {version}\nappVersion: {version}\nkubeVersion: \">=1.30.0-0\"\n"
    )
}

/// Sets marks where values of the chart decide.
fn mark(object: &mut Value) {
    let word = |text: &str| json!(format!("{MARK}{text}{MARK}"));
    let kind = object["kind"].as_str().unwrap_or_default().to_owned();
    if kind == "CustomResourceDefinition" {
        object["metadata"]["annotations"]["helm.sh/resource-policy"] = json!("keep");
    }
    for (role, to) in roles::COMPUTE_ROLES {
        if kind == "ClusterRole" && object["metadata"]["name"] == role {
            object["metadata"]["labels"][format!("{}{to}", user_roles::AGGREGATE)] = word("aggregate-roles");
        }
    }
    if kind != "Deployment" && kind != "DaemonSet" {
        return;
    }
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    if kind == "Deployment" {
        if object["spec"]["replicas"] == 2 {
            object["spec"]["replicas"] = word("replicas");
        }
        let pod = &mut object["spec"]["template"]["spec"];
        for field in ["nodeSelector", "tolerations", "affinity"] {
            pod[field] = word(&format!("placement {field}"));
        }
        for volume in pod.get_mut("volumes").and_then(Value::as_array_mut).into_iter().flatten() {
            if volume["name"] == workloads::CLIENTS {
                *volume = word("clients");
            }
        }
    }
    if name == "virt-handler" {
        for list in KUBELET_LISTS {
            if let Some(place) = object.pointer_mut(list) {
                *place = word(&format!("kubelet {list}"));
            }
        }
    }
    let init = object["spec"]["template"]["spec"].get_mut("initContainers").and_then(Value::as_array_mut);
    for container in init.into_iter().flatten().filter(|container| container["name"] == CAPABILITIES) {
        container["securityContext"] = word("emulation-security");
    }
    let containers = object["spec"]["template"]["spec"]["containers"].as_array_mut();
    for container in containers.into_iter().flatten() {
        let program = container["name"].as_str().unwrap_or_default().to_owned();
        if requests().iter().any(|(component, _)| *component == program) {
            container["resources"] = word(&format!("resources {program}"));
        }
        if name == "virt-handler" {
            container["args"] = word("emulation-arguments");
        }
        if program == "operator"
            && let Some(environment) = container["env"].as_array_mut()
        {
            environment.push(json!({"name": "KVM_EMULATION", "value": word("emulation")}));
            environment.push(json!({"name": "SCALE", "value": word("scale")}));
            environment.push(json!({"name": "RUNBOOK_URL_TEMPLATE", "value": word("runbooks")}));
        }
    }
}

/// Containers whose resources are values, with those that they have by default.
fn requests() -> Vec<(String, Value)> {
    let mut found = Vec::new();
    for object in manifests(&Settings::default()) {
        let containers = object["spec"]["template"]["spec"]["containers"].as_array();
        for container in containers.into_iter().flatten() {
            let name = container["name"].as_str().unwrap_or_default().to_owned();
            if container["resources"].is_object() {
                found.push((name, container["resources"].clone()));
            }
        }
    }
    found
}

fn values() -> Result<String, serde_saphyr::SerializeError> {
    let resources: serde_json::Map<String, Value> = requests().into_iter().collect();
    let values = json!({
        "image": crate::defaults::IMAGE,
        "replicas": 0,
        "machines": Settings::default().machines,
        "emulation": false,
        "clientsClaim": "",
        "runbookUrlTemplate": "",
        "sidecars": false,
        "cniDirectory": crate::defaults::CNI_DIRECTORY,
        "kubeletDirectory": crate::defaults::KUBELET_DIRECTORY,
        "sharedNetworkNamespaces": [],
        "aggregateRoles": true,
        "resources": resources,
        "placement": {"nodeSelector": {}, "tolerations": [], "affinity": {}},
        "ingress": {"enabled": false, "className": "", "host": "", "downloadsHost": "", "tlsSecret": "", "annotations": {}},
    });
    let text = yaml(&[values])?;
    Ok(format!(
        "# image: {{program}} stands for operator, virt-agent, macpool, and so on\n\
         # replicas: of the operator; 0: two where two nodes take pods, else one\n\
         # machines: VMs that the cluster is to hold; above 1000 the operator's memory request follows, 64 MiB for each\n\
         #   further 9000, in place of that in resources\n\
         # emulation: run guests without KVM; for tests\n\
         # clientsClaim: claim with clients to be downloaded, such as arm64/mac/virtctl.zip\n\
         # runbookUrlTemplate: URL of the pages about alerts, with %s for the name; empty: upstream's\n\
         # sidecars: install the rights of stock CSI sidecars, which the annotation ferrovirt.io/sidecars asks for\n\
         # cniDirectory: the nodes' directory of network plugins; /var/lib/cni/bin on OpenShift\n\
         # kubeletDirectory: the kubelet's on nodes, without a slash at its end; /var/lib/k0s/kubelet with k0s\n\
         # sharedNetworkNamespaces: VMs of all namespaces may use their NetworkAttachmentDefinitions; [\"*\"]: all\n\
         # aggregateRoles: false leaves kubevirt.io:view, edit and admin out of the cluster's roles of these names\n\
         # placement: of the control plane\n\
         # ingress: makes the upload proxy, and client downloads by downloadsHost, reachable from outside\n{text}\n"
    ))
}

/// Replaces all marks, and escapes what Helm would take for an expression.
fn expressions(text: &str) -> String {
    let text = text.replace("{{", "{{ \"{{\" }}");
    let mut result = String::with_capacity(text.len());
    for (index, part) in text.split(MARK).enumerate() {
        if index % 2 == 0 { result.push_str(part) } else { result.push_str(&expression(part)) }
    }
    // A quoted value that is not text loses its quotes.
    for quote in ["'", "\""] {
        for begin in ["{{ toJson", "{{ int", "{{ if"] {
            result = unquoted(&result, quote, begin);
        }
    }
    result.replace(NAMESPACE, "{{ .Release.Namespace }}")
}

fn expression(word: &str) -> String {
    match word.split_once(' ') {
        Some(("image", "{program}")) => "{{ .Values.image }}".to_owned(),
        Some(("image", program)) => {
            format!("{{{{ .Values.image | replace \"{{program}}\" \"{program}\" }}}}")
        }
        Some(("placement", field)) => format!("{{{{ toJson .Values.placement.{field} }}}}"),
        Some(("resources", "operator")) => OPERATOR_RESOURCES.to_owned(),
        Some(("resources", name)) => format!("{{{{ toJson (index .Values.resources \"{name}\") }}}}"),
        Some(("kubelet", list)) => by_kubelet(list),
        _ if word == "replicas" => REPLICAS.to_owned(),
        _ if word == "scale" => "{{ not .Values.replicas }}".to_owned(),
        _ if word == "clients" => CLIENTS.to_owned(),
        _ if word == "cni-directory" => CNI_DIRECTORY.to_owned(),
        _ if word == "kubelet-directory" => KUBELET_DIRECTORY.to_owned(),
        _ if word == "shared-networks" => SHARED_NETWORKS.to_owned(),
        _ if word == "aggregate-roles" => AGGREGATE_ROLES.to_owned(),
        _ if word == "runbooks" => "{{ .Values.runbookUrlTemplate }}".to_owned(),
        _ if word == "emulation" => "{{ .Values.emulation }}".to_owned(),
        _ if word == "emulation-security" => by_emulation(&[true, false].map(capabilities_security)),
        _ => "{{ if .Values.emulation }}[\"--kvm\", \"never\"]{{ else }}[]{{ end }}".to_owned(),
    }
}

/// A value with emulation, and one without.
fn by_emulation([with, without]: &[Value; 2]) -> String {
    format!("{{{{ if .Values.emulation }}}}{with}{{{{ else }}}}{without}{{{{ end }}}}")
}

/// A list of the agent's DaemonSet with a directory of the kubelet.
fn kubelet_list(list: &str, directory: &str) -> Value {
    let settings = Settings {
        cni_directory: CNI_DIRECTORY.to_owned(),
        kubelet_directory: directory.to_owned(),
        ..Settings::default()
    };
    agent(&settings).pointer(list).cloned().unwrap_or_default()
}

/// A list with the kubelet's usual directory, and with any other.
fn by_kubelet(list: &str) -> String {
    let usual = crate::defaults::KUBELET_DIRECTORY;
    let [with, without] = [usual, KUBELET_DIRECTORY].map(|directory| kubelet_list(list, directory));
    let is_usual = format!("eq (.Values.kubeletDirectory | default `{usual}`) `{usual}`");
    format!("{{{{ if {is_usual} }}}}{with}{{{{ else }}}}{without}{{{{ end }}}}")
}

/// Removes quotes around expressions that begin with a text.
fn unquoted(text: &str, quote: &str, begin: &str) -> String {
    let lines = text.lines().map(|line| {
        let Some(at) = line.find(&format!("{quote}{begin}")) else { return line.to_owned() };
        let (head, value) = line.split_at(at);
        match value.strip_prefix(quote).and_then(|value| value.strip_suffix(quote)) {
            Some(value) => format!("{head}{value}"),
            None => line.to_owned(),
        }
    });
    let mut text = lines.collect::<Vec<_>>().join("\n");
    text.push('\n');
    text
}

/// Without a number, the field is the operator's.
const REPLICAS: &str = "{{ if .Values.replicas }}{{ int .Values.replicas }}{{ else }}null{{ end }}";

/// The operator's resources: the memory request is [`Settings::operator_memory`], where that is more than usual.
const OPERATOR_RESOURCES: &str = "{{ toJson (ternary (mergeOverwrite (deepCopy .Values.resources.operator) \
                                  (dict \"requests\" (dict \"memory\" (printf \"%dMi\" (add 64 (div (add (mul (sub \
                                  (int .Values.machines) 1000) 64) 8999) 9000)))))) .Values.resources.operator \
                                  (gt (int .Values.machines) 1000)) }}";

// Values that an earlier chart did not have are missing in `helm upgrade --reuse-values`. Texts in these expressions are in
// backquotes, because they also stand in JSON.
const CNI_DIRECTORY: &str = "{{ .Values.cniDirectory | default `/opt/cni/bin` }}";
const KUBELET_DIRECTORY: &str = "{{ .Values.kubeletDirectory | default `/var/lib/kubelet` }}";
/// Lists of the agent's DaemonSet that differ by the kubelet's directory.
const KUBELET_LISTS: [&str; 2] =
    ["/spec/template/spec/volumes", "/spec/template/spec/containers/0/volumeMounts"];
const AGGREGATE_ROLES: &str = "{{ ne (toString .Values.aggregateRoles) `false` }}";
const SHARED_NETWORKS: &str = "{{ join \",\" .Values.sharedNetworkNamespaces }}";

/// The volume of supplied clients, in the flow style of YAML.
const CLIENTS: &str = "{{ if .Values.clientsClaim }}{name: clients, persistentVolumeClaim: \
                       {claimName: {{ toJson .Values.clientsClaim }}, readOnly: true}}\
                       {{ else }}{name: clients, emptyDir: {}}{{ end }}";

const NOTES: &str = "\
ferrovirt {{ .Chart.Version }} is installed in {{ .Release.Namespace }}.

Its namespace needs these labels:
  kubectl label namespace {{ .Release.Namespace }} pod-security.kubernetes.io/enforce=privileged runlevel=0

Switch the platform on:
  kubectl apply -f - <<EOF
  apiVersion: hco.kubevirt.io/v1
  kind: HyperConverged
  metadata: {name: kubevirt-hyperconverged, namespace: {{ .Release.Namespace }}}
  ---
  apiVersion: hostpathprovisioner.kubevirt.io/v1beta1
  kind: HostPathProvisioner
  metadata: {name: hostpath-provisioner}
  spec: {storagePools: [{name: legacy, path: /var/lib/hpvolumes}]}
  EOF
  kubectl -n {{ .Release.Namespace }} wait hyperconverged/kubevirt-hyperconverged --for condition=Available

`helm uninstall` first removes both objects, and stops while virtual machines or DataVolumes exist, unless
spec.deployment.uninstallStrategy of HyperConverged is RemoveWorkloads. Definitions stay, and so do authorities'
Secrets and ConfigMaps in the namespace.
";

const INGRESS: &str = "\
{{- if .Values.ingress.enabled }}
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: cdi-uploadproxy
  namespace: {{ .Release.Namespace }}
  annotations: {{ toJson (merge (dict \"nginx.ingress.kubernetes.io/backend-protocol\" \"HTTPS\" \"nginx.ingress.kubernetes.io/proxy-body-size\" \"0\") .Values.ingress.annotations) }}
spec:
  {{- if .Values.ingress.className }}
  ingressClassName: {{ .Values.ingress.className }}
  {{- end }}
  {{- if .Values.ingress.tlsSecret }}
  tls:
    - hosts: [{{ quote .Values.ingress.host }}]
      secretName: {{ .Values.ingress.tlsSecret }}
  {{- end }}
  rules:
    - host: {{ quote .Values.ingress.host }}
      http:
        paths:
          - path: /
            pathType: Prefix
            backend:
              service:
                name: cdi-uploadproxy
                port: {number: 443}
{{- if .Values.ingress.downloadsHost }}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: hyperconverged-cluster-cli-download
  namespace: {{ .Release.Namespace }}
  annotations: {{ toJson .Values.ingress.annotations }}
spec:
  {{- if .Values.ingress.className }}
  ingressClassName: {{ .Values.ingress.className }}
  {{- end }}
  {{- if .Values.ingress.tlsSecret }}
  tls:
    - hosts: [{{ quote .Values.ingress.downloadsHost }}]
      secretName: {{ .Values.ingress.tlsSecret }}
  {{- end }}
  rules:
    - host: {{ quote .Values.ingress.downloadsHost }}
      http:
        paths:
          - path: /
            pathType: Prefix
            backend:
              service:
                name: hyperconverged-cluster-cli-download
                port: {number: 8080}
{{- end }}
{{- end }}
";

#[cfg(test)]
mod tests {
    use super::*;

    fn file<'a>(all: &'a [File], path: &str) -> &'a str {
        let names: Vec<&String> = all.iter().map(|one| &one.0).collect();
        &all.iter().find(|one| one.0 == path).unwrap_or_else(|| panic!("{path} is not in {names:?}")).1
    }

    /// Helm's output for a template, as far as the chart's own expressions go.
    fn rendered(text: &str, kubelet: &str) -> String {
        let mut text = text.replace("{{ .Release.Namespace }}", "ns").replace("{{ \"{{\" }}", "{{");
        for list in KUBELET_LISTS {
            let usual = kubelet == crate::defaults::KUBELET_DIRECTORY;
            let chosen = kubelet_list(list, if usual { kubelet } else { KUBELET_DIRECTORY });
            text = text.replace(&by_kubelet(list), &chosen.to_string());
        }
        for (from, to) in [
            ("{{ .Values.image }}", "localhost/ferrovirt:{program}"),
            (REPLICAS, "null"),
            ("{{ not .Values.replicas }}", "true"),
            ("{{ .Values.emulation }}", "false"),
            ("{{ .Values.runbookUrlTemplate }}", ""),
            (CNI_DIRECTORY, crate::defaults::CNI_DIRECTORY),
            (KUBELET_DIRECTORY, kubelet),
            (AGGREGATE_ROLES, "true"),
            // As it stands in a quoted text of YAML.
            (SHARED_NETWORKS, ""),
            ("{{ if .Values.emulation }}[\"--kvm\", \"never\"]{{ else }}[]{{ end }}", "[]"),
            ("{{ toJson .Values.placement.nodeSelector }}", "{}"),
            ("{{ toJson .Values.placement.tolerations }}", "[]"),
            ("{{ toJson .Values.placement.affinity }}", "{}"),
            (CLIENTS, "{name: clients, emptyDir: {}}"),
            ("{{- if .Values.sidecars }}\n", ""),
            ("{{- end }}\n", ""),
        ] {
            text = text.replace(from, to);
        }
        let security = [true, false].map(capabilities_security);
        text = text.replace(&by_emulation(&security), &security[1].to_string());
        for (name, resources) in requests() {
            if name == "operator" {
                text = text.replace(OPERATOR_RESOURCES, &resources.to_string());
            }
            text = text.replace(
                &format!("{{{{ toJson (index .Values.resources \"{name}\") }}}}"),
                &resources.to_string(),
            );
        }
        while let Some(at) = text.find("{{ .Values.image | replace \"{program}\" \"") {
            let rest = &text[at + "{{ .Values.image | replace \"{program}\" \"".len()..];
            let program = rest[..rest.find('"').unwrap()].to_owned();
            let whole = format!("{{{{ .Values.image | replace \"{{program}}\" \"{program}\" }}}}");
            text = text.replace(&whole, &format!("localhost/ferrovirt:{program}"));
        }
        text
    }

    #[test]
    fn templates_render_to_the_objects_of_the_manifests() {
        let all = files("1.0.0").unwrap();
        let settings = Settings { namespace: "ns".to_owned(), sidecars: true, ..Settings::default() };
        let mut compared = 0;
        for wanted in manifests(&settings) {
            let kind = wanted["kind"].as_str().unwrap().to_lowercase();
            if kind == "namespace" {
                continue;
            }
            let name = wanted["metadata"]["name"].as_str().unwrap().replace([':', '/'], "-");
            let text = file(&all, &format!("templates/{kind}-{name}.yaml"));
            if text.len() > 40_000 {
                // Reading the schemas of all kinds takes a minute; those of the small ones show the same.
                assert!(text.contains("helm.sh/resource-policy: keep"), "{name}");
                continue;
            }
            let text = rendered(text, &settings.kubelet_directory);
            assert!(kind == "customresourcedefinition" || !text.contains("{{"), "{text}");
            let mut found: Value =
                serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}\n{text}"));
            if kind == "customresourcedefinition" {
                assert_eq!(found["metadata"]["annotations"]["helm.sh/resource-policy"], "keep");
                found["metadata"].as_object_mut().unwrap().remove("annotations");
            }
            // An API server takes null for a missing field.
            if let Some(spec) = found.get_mut("spec").and_then(Value::as_object_mut)
                && spec.get("replicas").is_some_and(Value::is_null)
            {
                spec.remove("replicas");
            }
            if let Some(pod) = found.pointer_mut("/spec/template/spec").and_then(Value::as_object_mut)
                && kind == "deployment"
            {
                for field in ["nodeSelector", "tolerations", "affinity"] {
                    assert!(pod.remove(field).is_some(), "{name} {field}");
                }
                for container in pod["containers"].as_array_mut().unwrap() {
                    if let Some(environment) = container.get_mut("env").and_then(Value::as_array_mut) {
                        let chosen = ["KVM_EMULATION", "RUNBOOK_URL_TEMPLATE", "KUBELET_DIRECTORY"];
                        environment.retain(|one| chosen.iter().all(|name| one["name"] != *name));
                    }
                }
            }
            assert_eq!(found, wanted, "{name}");
            compared += 1;
        }
        assert!(compared > 60, "{compared}");
        // Objects that only the choice adds are conditional.
        let usual = manifests(&Settings { sidecars: false, ..settings.clone() }).len();
        let conditional = all.iter().filter(|one| one.1.starts_with("{{- if .Values.sidecars }}")).count();
        assert_eq!((manifests(&settings).len() - usual, conditional), (4, 4));
    }

    #[test]
    fn another_directory_of_the_kubelet_reaches_agent_and_operator() {
        let all = files("1.0.0").unwrap();
        let kubelet = "/var/lib/k0s/kubelet";
        let settings = Settings {
            namespace: "ns".to_owned(),
            kubelet_directory: kubelet.to_owned(),
            ..Settings::default()
        };
        let of = |name: &str| {
            let text = rendered(file(&all, &format!("templates/{name}.yaml")), kubelet);
            serde_saphyr::from_str::<Value>(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
        };
        let wanted = manifests(&settings);
        let agent =
            wanted.iter().find(|one| one["metadata"]["name"] == "virt-handler" && one["kind"] == "DaemonSet");
        assert_eq!(Some(&of("daemonset-virt-handler")), agent);
        let operator = of("deployment-ferrovirt-operator");
        let environment = operator["spec"]["template"]["spec"]["containers"][0]["env"].as_array().unwrap();
        assert!(
            environment.contains(&json!({"name": "KUBELET_DIRECTORY", "value": kubelet})),
            "{environment:?}"
        );
    }

    #[test]
    fn values_of_an_earlier_chart_lack_none_that_is_needed() {
        let kubelet = crate::defaults::KUBELET_DIRECTORY;
        for (expression, usual) in
            [(CNI_DIRECTORY, crate::defaults::CNI_DIRECTORY), (KUBELET_DIRECTORY, kubelet)]
        {
            assert!(expression.ends_with(&format!(" | default `{usual}` }}}}")), "{expression}");
        }
        for list in KUBELET_LISTS {
            let condition =
                format!("{{{{ if eq (.Values.kubeletDirectory | default `{kubelet}`) `{kubelet}` }}}}");
            assert!(by_kubelet(list).starts_with(&condition), "{list}");
            // Helm parses the expression within the JSON.
            assert!(!kubelet_list(list, KUBELET_DIRECTORY).to_string().contains("default \\"), "{list}");
        }
        assert_eq!(AGGREGATE_ROLES, "{{ ne (toString .Values.aggregateRoles) `false` }}");
    }

    #[test]
    fn values_are_those_of_the_manifests() {
        let all = files("1.0.0").unwrap();
        let values: Value = serde_saphyr::from_str(file(&all, "values.yaml")).unwrap();
        assert_eq!(values["image"], crate::defaults::IMAGE);
        assert_eq!(values["aggregateRoles"], true);
        let usual = Settings::default();
        assert_eq!(values["machines"], usual.machines);
        let memory = &values["resources"]["operator"]["requests"]["memory"];
        assert_eq!(*memory, format!("{}Mi", usual.operator_memory()));
        let operator = file(&all, "templates/deployment-ferrovirt-operator.yaml");
        assert_eq!(operator.matches(OPERATOR_RESOURCES).count(), 1);
        assert!(file(&all, "Chart.yaml").contains("version: 1.0.0"));
    }
}
