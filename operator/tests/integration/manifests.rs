//! The output of `operator manifests`: complete, consistent in itself, no more rights than listed, and as recorded.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use clap::Parser;
use operator::args::{Args, Command};
use operator::config::{AREAS, Config};
use operator::install::{Settings, custom_resources, hostpath, macpool, manifests, yaml};
use operator::platform::plan::Side;
use serde_json::{Value, json};

/// Everything that is installed, and what the operator deploys for its NetworkAddonsConfig and HostPathProvisioner.
fn all() -> Vec<Value> {
    of_settings(&Settings::default())
}

fn of_settings(settings: &Settings) -> Vec<Value> {
    let pool =
        macpool::Pool { replicas: if settings.replicas == 1 { 1 } else { 2 }, ..macpool::Pool::default() };
    let mut all = manifests(settings);
    all.extend(macpool::objects(settings, &pool));
    let legacy = hostpath::Pool {
        name: hostpath::LEGACY.to_owned(),
        path: "/var/lib/hpvolumes".to_owned(),
        ..hostpath::Pool::default()
    };
    let driver = hostpath::Driver { pools: vec![legacy], ..hostpath::Driver::default() };
    all.extend(hostpath::objects(settings, &driver));
    all
}

fn kind(object: &Value) -> &str {
    object["kind"].as_str().unwrap()
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap()
}

fn of<'a>(all: &'a [Value], wanted: &'a str) -> impl Iterator<Item = &'a Value> {
    all.iter().filter(move |object| kind(object) == wanted)
}

fn names(all: &[Value], wanted: &str) -> BTreeSet<String> {
    of(all, wanted).map(|object| name(object).to_owned()).collect()
}

/// Pod templates of all Deployments and DaemonSets.
fn templates(all: &[Value]) -> Vec<&Value> {
    of(all, "Deployment").chain(of(all, "DaemonSet")).map(|object| &object["spec"]["template"]).collect()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

#[test]
fn objects_are_those_recorded() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/manifests.yaml");
    // Definitions are compared with upstream's fields by lib/api; here they are listed by name.
    let (definitions, others): (Vec<_>, Vec<_>) =
        all().into_iter().partition(|object| kind(object) == "CustomResourceDefinition");
    let mut text: String = definitions.iter().map(|one| format!("# {}\n", name(one))).collect();
    text.push_str(&yaml(&others).unwrap());
    text.push_str("\n---\n# Custom resources\n");
    text.push_str(&yaml(&custom_resources(&Settings::default())).unwrap());
    if std::env::var_os("FERROVIRT_BLESS").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &text).unwrap();
    }
    let recorded = fs::read_to_string(&path).unwrap();
    let difference = text.lines().zip(recorded.lines()).enumerate().find(|(_, (now, then))| now != then);
    assert_eq!(difference, None, "first difference; FERROVIRT_BLESS=1 records what is printed now");
    assert_eq!(text.lines().count(), recorded.lines().count());
}

#[test]
fn nothing_of_the_driver_is_installed_without_its_object() {
    let installed = manifests(&Settings::default());
    assert!(!names(&installed, "DaemonSet").contains(hostpath::DAEMON_SET));
    assert_eq!(of(&installed, "CSIDriver").count(), 0);
    let switches = custom_resources(&Settings::default());
    assert_eq!(of(&switches, "HostPathProvisioner").count(), 1);
}

#[test]
fn one_deployment_has_the_controllers_of_all_areas() {
    let all = manifests(&Settings::default());
    let deployments = ["cdi-uploadproxy", "ferrovirt-operator"].map(str::to_owned);
    assert_eq!(names(&all, "Deployment"), BTreeSet::from(deployments));
    let operator = of(&all, "Deployment").find(|one| name(one) == "ferrovirt-operator").unwrap();
    let container = &operator["spec"]["template"]["spec"]["containers"][0];
    let words: Vec<&str> = list(&container["args"]).iter().map(|word| word.as_str().unwrap()).collect();
    let line = ["operator"].into_iter().chain(words).chain(["--identity", "pod"]);
    let Command::Run(run) = Args::try_parse_from(line).unwrap().command else { panic!("{container}") };
    assert_eq!(Config::new(&run).unwrap().areas, AREAS);
}

#[test]
fn yaml_reads_back_as_the_same_objects() {
    let all = all();
    let text = yaml(&all).unwrap();
    let read: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    assert_eq!(read.len(), all.len());
    for (read, written) in read.iter().zip(&all) {
        assert_eq!(read, written, "{} {}", kind(written), name(written));
    }
}

#[test]
fn every_object_is_listed_once_and_in_a_namespace_that_exists() {
    let all = all();
    let mut seen = BTreeSet::new();
    for object in &all {
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or("");
        assert!(seen.insert((kind(object), namespace, name(object))), "{} {}", kind(object), name(object));
        assert!(["", "kubevirt-hyperconverged", "kube-system"].contains(&namespace));
        let manager = object["metadata"]["labels"]["app.kubernetes.io/managed-by"].as_str().unwrap();
        assert!(["ferrovirt", "hostpath-provisioner-operator"].contains(&manager), "{manager}");
    }
    assert_eq!(kind(&all[0]), "Namespace", "everything else is in it");
}

#[test]
fn the_namespace_is_the_one_that_was_chosen() {
    let settings = Settings { namespace: "elsewhere".to_owned(), ..Settings::default() };
    // The schema of HyperConverged names its one object, which has the name of the usual namespace.
    let others: Vec<Value> =
        of_settings(&settings).into_iter().filter(|one| kind(one) != "CustomResourceDefinition").collect();
    let text = yaml(&others).unwrap();
    // Upstream's names.
    let names = [
        "  name: kubevirt-hyperconverged-operator-metrics",
        "  - virtctl-clidownloads-kubevirt-hyperconverged",
        "  - expression: object.metadata.name == 'kubevirt-hyperconverged'",
        "    message: \"metadata.name: must be kubevirt-hyperconverged\"",
    ];
    let rest = text.lines().filter(|line| line.contains("kubevirt-hyperconverged") && !names.contains(line));
    let rest = rest.collect::<Vec<_>>();
    assert_eq!(rest, Vec::<&str>::new());
    assert!(text.contains("system:serviceaccount:elsewhere:kubevirt-handler"));
}

#[test]
fn the_directory_of_the_kubelet_is_the_one_that_was_chosen() {
    let settings = Settings { kubelet_directory: "/data/kubelet".to_owned(), ..Settings::default() };
    let all: Vec<Value> =
        of_settings(&settings).into_iter().filter(|one| kind(one) != "CustomResourceDefinition").collect();
    let text = yaml(&all).unwrap();
    let usual: BTreeSet<&str> =
        text.lines().filter(|line| line.contains("/var/lib/kubelet")).map(str::trim).collect();
    // Inside of the agent's container, and where every kubelet has its socket for device plugins.
    let expected = [
        "- mountPath: /var/lib/kubelet",
        "- mountPath: /var/lib/kubelet/device-plugins",
        "path: /var/lib/kubelet/device-plugins",
    ];
    assert_eq!(usual, BTreeSet::from(expected));
    let volumes = templates(&all).into_iter().flat_map(|template| list(&template["spec"]["volumes"]));
    let paths: BTreeSet<&str> = volumes
        .filter_map(|volume| volume["hostPath"]["path"].as_str())
        .filter(|path| path.contains("kubelet"))
        .collect();
    let expected = [
        "/data/kubelet",
        "/data/kubelet/plugins",
        "/data/kubelet/plugins/csi-hostpath",
        "/data/kubelet/plugins_registry",
        "/data/kubelet/pods",
        "/var/lib/kubelet/device-plugins",
    ];
    assert_eq!(paths, BTreeSet::from(expected));
    // The driver's calls name paths of the node.
    for path in ["plugins", "pods"] {
        assert!(text.contains(&format!("- mountPath: /data/kubelet/{path}\n")), "{path}");
    }
    assert!(text.contains("--kubelet-registration-path=/data/kubelet/plugins/csi-hostpath/csi.sock"));
    let operator = of(&all, "Deployment").find(|one| name(one) == "ferrovirt-operator").unwrap();
    let environment = list(&operator["spec"]["template"]["spec"]["containers"][0]["env"]);
    assert!(environment.contains(&json!({"name": "KUBELET_DIRECTORY", "value": "/data/kubelet"})));
}

#[test]
fn one_replica_needs_no_disruption_budget_and_no_spreading() {
    let settings = Settings { replicas: 1, ..Settings::default() };
    let all = of_settings(&settings);
    assert_eq!(of(&all, "PodDisruptionBudget").count(), 0);
    assert!(templates(&all).iter().all(|template| template["spec"]["topologySpreadConstraints"].is_null()));
    assert!(of(&all, "Deployment").all(|one| one["spec"]["replicas"] == 1));
}

#[test]
fn without_a_number_the_operator_decides_about_its_replicas() {
    let operator = |replicas| {
        let all = manifests(&Settings { replicas, ..Settings::default() });
        of(&all, "Deployment").find(|one| name(one) == "ferrovirt-operator").unwrap()["spec"].clone()
    };
    let scales = |spec: &Value| {
        list(&spec["template"]["spec"]["containers"][0]["env"]).iter().any(|one| one["name"] == "SCALE")
    };
    let (chosen, fixed) = (operator(0), operator(3));
    assert!(chosen["replicas"].is_null() && scales(&chosen), "{chosen}");
    assert!(fixed["replicas"] == 3 && !scales(&fixed), "{fixed}");
}

#[test]
fn services_select_pods_that_have_their_ports() {
    let all = all();
    for service in of(&all, "Service") {
        let (label, value) = service["spec"]["selector"].as_object().unwrap().iter().next().unwrap();
        let pods: Vec<&Value> = templates(&all)
            .into_iter()
            .filter(|template| template["metadata"]["labels"][label] == *value)
            .collect();
        // Prometheus reads operator and node agents by one.
        let count = if name(service) == "kubevirt-prometheus-metrics" { 2 } else { 1 };
        assert_eq!(pods.len(), count, "{}", name(service));
        let port = &service["spec"]["ports"][0]["targetPort"];
        let has_port =
            |container: &Value| list(&container["ports"]).iter().any(|one| one["containerPort"] == *port);
        for pod in pods {
            assert!(list(&pod["spec"]["containers"]).iter().any(has_port), "{}", name(service));
        }
    }
}

#[test]
fn references_between_objects_resolve() {
    let all = all();
    let accounts = names(&all, "ServiceAccount");
    let priorities = names(&all, "PriorityClass");
    for template in templates(&all) {
        let spec = &template["spec"];
        assert!(accounts.contains(spec["serviceAccountName"].as_str().unwrap()));
        let priority = spec["priorityClassName"].as_str().unwrap();
        assert!(priorities.contains(priority) || priority.starts_with("system-"), "{priority}");
    }
    for binding in of(&all, "ClusterRoleBinding") {
        assert!(names(&all, "ClusterRole").contains(binding["roleRef"]["name"].as_str().unwrap()));
    }
    for binding in of(&all, "RoleBinding").filter(|one| one["metadata"]["namespace"] != "kube-system") {
        assert!(names(&all, "Role").contains(binding["roleRef"]["name"].as_str().unwrap()));
    }
    let services = names(&all, "Service");
    let hooks = of(&all, "MutatingWebhookConfiguration").chain(of(&all, "ValidatingWebhookConfiguration"));
    for hook in hooks.flat_map(|one| list(&one["webhooks"])) {
        assert!(services.contains(hook["clientConfig"]["service"]["name"].as_str().unwrap()));
        assert!(hook["clientConfig"]["caBundle"].is_null(), "it is filled in at run time");
    }
    for api in of(&all, "APIService") {
        assert!(services.contains(api["spec"]["service"]["name"].as_str().unwrap()));
    }
    for binding in of(&all, "ValidatingAdmissionPolicyBinding") {
        assert!(
            names(&all, "ValidatingAdmissionPolicy")
                .contains(binding["spec"]["policyName"].as_str().unwrap())
        );
    }
}

/// The rules of the roles of the platform's own pods.
fn own_rules(all: &[Value]) -> Vec<(&str, bool, &Value)> {
    let own = ["kubevirt-controller", "kubevirt-handler", "kubemacpool-manager-role", "cdi-uploadproxy"];
    all.iter()
        .filter(|object| ["ClusterRole", "Role"].contains(&kind(object)) && own.contains(&name(object)))
        .flat_map(|role| {
            list(&role["rules"]).iter().map(move |rule| (name(role), kind(role) == "ClusterRole", rule))
        })
        .collect()
}

#[test]
fn own_pods_have_no_rights_beyond_their_work() {
    let all = all();
    let rules = own_rules(&all);
    assert!(rules.len() > 30);
    for (role, everywhere, rule) in rules {
        let has = |field: &str, word: &str| list(&rule[field]).iter().any(|one| one == word);
        // Of the roles of users it changes labels, to which a policy holds it.
        let labels = role == "kubevirt-controller"
            && rule["resourceNames"] == json!(["kubevirt.io:view", "kubevirt.io:edit", "kubevirt.io:admin"]);
        for verb in ["*", "escalate", "bind", "impersonate"] {
            assert!((labels && verb == "escalate") || !has("verbs", verb), "{role}: {rule}");
        }
        assert!(!has("resources", "*") && !has("apiGroups", "*"), "{role}: {rule}");
        if everywhere && (has("resources", "secrets") || has("resources", "configmaps")) {
            for verb in ["get", "list", "watch"] {
                assert!(!has("verbs", verb), "{role} reads Secrets or ConfigMaps of all namespaces: {rule}");
            }
        }
        if role == "kubevirt-handler" {
            assert!(!has("verbs", "update"), "{role}: {rule}");
            // Held to those of its node by policies.
            let of_volumes =
                has("resources", "persistentvolumes") || has("resources", "csistoragecapacities");
            assert!(of_volumes || !has("verbs", "delete"), "{role}: {rule}");
        }
    }
}

#[test]
fn all_pods_but_those_of_nodes_are_confined() {
    for deployment in of(&all(), "Deployment") {
        let spec = &deployment["spec"]["template"]["spec"];
        assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
        assert_eq!(spec["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
        for container in list(&spec["containers"]) {
            let context = &container["securityContext"];
            assert_eq!(context["allowPrivilegeEscalation"], false, "{}", name(deployment));
            assert_eq!(context["readOnlyRootFilesystem"], true, "{}", name(deployment));
            assert_eq!(context["capabilities"]["drop"][0], "ALL", "{}", name(deployment));
        }
    }
}

/// Containers that are not confined: they enter namespaces of guests and mount their disks, ask libvirt for what guests can
/// have by KVM, or mount volumes for pods.
const PRIVILEGED: [&str; 3] = ["virt-handler", "virt-launcher", "hostpath-provisioner"];

#[test]
fn all_containers_of_nodes_have_read_only_roots_and_only_listed_ones_are_privileged() {
    let all = all();
    for set in of(&all, "DaemonSet") {
        let spec = &set["spec"]["template"]["spec"];
        let own = |one: &&Value| one["image"].as_str().is_some_and(|image| image.contains("ferrovirt"));
        for container in list(&spec["initContainers"]).iter().chain(list(&spec["containers"])).filter(own) {
            let (context, name) = (&container["securityContext"], container["name"].as_str().unwrap());
            assert_eq!(context["readOnlyRootFilesystem"], true, "{name}");
            if PRIVILEGED.contains(&name) {
                assert_eq!(context["privileged"], true, "{name}");
                continue;
            }
            assert_eq!(context["allowPrivilegeEscalation"], false, "{name}");
            assert_eq!(context["capabilities"]["drop"][0], "ALL", "{name}");
            assert_eq!(context["seccompProfile"]["type"], "RuntimeDefault", "{name}");
        }
        assert!(spec["hostNetwork"].is_null() && spec["hostIPC"].is_null(), "{}", name(set));
    }
}

#[test]
fn every_port_of_a_pod_is_in_its_network_policy_and_no_other() {
    let all = all();
    for template in templates(&all) {
        let labels = &template["metadata"]["labels"];
        let selects = |policy: &&Value| {
            let wanted = policy["spec"]["podSelector"]["matchLabels"].as_object();
            wanted.is_some_and(|wanted| wanted.iter().all(|(name, value)| labels[name] == *value))
        };
        let policies: Vec<&Value> = of(&all, "NetworkPolicy").filter(selects).collect();
        assert_eq!(policies.len(), 1, "{labels}");
        let ports = |values: &[Value], field: &str| -> BTreeSet<u64> {
            values.iter().map(|port| port[field].as_u64().unwrap()).collect()
        };
        let open =
            list(&policies[0]["spec"]["ingress"]).iter().map(|rule| ports(list(&rule["ports"]), "port"));
        let open: BTreeSet<u64> = open.flatten().collect();
        let own = list(&template["spec"]["containers"]);
        let own = own.iter().flat_map(|container| ports(list(&container["ports"]), "containerPort"));
        assert_eq!(open, own.collect::<BTreeSet<u64>>(), "{labels}");
    }
}

#[test]
fn one_node_is_asked_for_192_mib_in_five_pods() {
    let settings = Settings { replicas: 1, ..Settings::default() };
    let all = of_settings(&settings);
    let templates = templates(&all);
    assert_eq!(templates.len(), 5);
    let requested = |container: &Value| {
        let text = container["resources"]["requests"]["memory"].as_str().unwrap_or("0");
        api::quantity::bytes(text).unwrap() >> 20
    };
    let sum: u64 = templates.iter().flat_map(|one| list(&one["spec"]["containers"])).map(requested).sum();
    assert_eq!(sum, 192);
}

#[test]
fn the_operators_request_follows_the_number_of_machines() {
    for (machines, wanted) in
        [(1, "64Mi"), (1000, "64Mi"), (1001, "65Mi"), (10_000, "128Mi"), (100_000, "768Mi")]
    {
        let all = manifests(&Settings { machines, ..Settings::default() });
        let operator = of(&all, "Deployment").find(|one| name(one) == "ferrovirt-operator").unwrap();
        let requests = &operator["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"];
        assert_eq!(requests["memory"], wanted, "{machines}");
    }
}

#[test]
fn own_accounts_pass_the_webhooks_that_a_dead_operator_would_block() {
    let all = all();
    let validator =
        of(&all, "ValidatingWebhookConfiguration").find(|one| name(one) == "virt-api-validator").unwrap();
    for hook in list(&validator["webhooks"]) {
        let expression = hook["matchConditions"][0]["expression"].as_str().unwrap();
        for account in ["kubevirt-controller", "kubevirt-handler"] {
            assert!(expression.contains(&format!("system:serviceaccount:kubevirt-hyperconverged:{account}")));
        }
    }
}

#[test]
fn available_waits_for_every_webhook_that_refuses_while_it_is_away() {
    let waited = Side::Compute.services().iter().chain(Side::Storage.services()).copied();
    let waited: BTreeSet<&str> = waited.chain([macpool::SERVICE]).collect();
    let all = all();
    let configurations =
        of(&all, "ValidatingWebhookConfiguration").chain(of(&all, "MutatingWebhookConfiguration"));
    let hooks = configurations.flat_map(|one| list(&one["webhooks"]));
    let refusing = hooks.filter(|hook| hook["failurePolicy"] == "Fail");
    let services: BTreeSet<&str> =
        refusing.map(|hook| hook["clientConfig"]["service"]["name"].as_str().unwrap()).collect();
    assert_eq!(services, waited);
}

#[test]
fn pods_of_webhooks_are_replaced_without_a_gap() {
    let all = all();
    for wanted in ["ferrovirt-operator", macpool::DEPLOYMENT] {
        let spec = &of(&all, "Deployment").find(|one| name(one) == wanted).unwrap()["spec"];
        let rolling = &spec["strategy"]["rollingUpdate"];
        assert_eq!((&rolling["maxSurge"], &rolling["maxUnavailable"]), (&json!(1), &json!(0)), "{wanted}");
        let pod = &spec["template"]["spec"];
        let container = &pod["containers"][0];
        // A port of the node would keep the new pod off the node.
        assert!(list(&container["ports"]).iter().all(|port| port["hostPort"].is_null()), "{wanted}");
        let sleep = container["lifecycle"]["preStop"]["sleep"]["seconds"].as_u64().unwrap();
        let grace = pod["terminationGracePeriodSeconds"].as_u64().unwrap_or(30);
        assert!(sleep >= 5 && grace >= sleep + 5, "{wanted}: {sleep} of {grace}");
    }
}

#[test]
fn user_roles_are_aggregated_to_the_clusters_roles() {
    let all = all();
    let verbs = |role: &str, resource: &str| -> BTreeSet<String> {
        let role = of(&all, "ClusterRole").find(|one| name(one) == role).unwrap();
        let rules = list(&role["rules"])
            .iter()
            .filter(|rule| list(&rule["resources"]).iter().any(|one| one == resource));
        rules.flat_map(|rule| list(&rule["verbs"])).map(|verb| verb.as_str().unwrap().to_owned()).collect()
    };
    for group in ["kubevirt.io", "cdi.kubevirt.io", "hyperconvergeds.hco.kubevirt.io"] {
        for to in ["view", "edit", "admin"] {
            let wanted = format!("{group}:{to}");
            let role = of(&all, "ClusterRole").find(|one| name(one) == wanted).unwrap();
            let label = format!("rbac.authorization.k8s.io/aggregate-to-{to}");
            assert_eq!(role["metadata"]["labels"][label], "true", "{wanted}");
        }
    }
    assert!(!verbs("kubevirt.io:view", "virtualmachines").contains("update"));
    assert!(verbs("kubevirt.io:view", "virtualmachineinstances/console").is_empty());
    assert!(verbs("kubevirt.io:edit", "virtualmachineinstances/console").contains("get"));
    assert!(!verbs("kubevirt.io:edit", "virtualmachines").contains("deletecollection"));
    assert!(verbs("kubevirt.io:admin", "virtualmachines").contains("deletecollection"));
    assert!(!verbs("hyperconvergeds.hco.kubevirt.io:view", "hyperconvergeds").contains("update"));
    assert!(verbs("hyperconvergeds.hco.kubevirt.io:admin", "hyperconvergeds").contains("update"));
}

#[test]
fn versions_that_differ_are_converted_by_a_service_of_the_operator() {
    let all = all();
    let services = names(&all, "Service");
    for definition in of(&all, "CustomResourceDefinition") {
        let conversion = &definition["spec"]["conversion"];
        let schemas: BTreeSet<String> = list(&definition["spec"]["versions"])
            .iter()
            .map(|version| version["schema"].to_string())
            .collect();
        // Fields that only the old version of SSP has are not stored.
        let differ = schemas.len() > 1 && name(definition) != "ssps.ssp.kubevirt.io";
        assert_eq!(differ, conversion["strategy"] == "Webhook", "{}", name(definition));
        if let Some(service) = conversion["webhook"]["clientConfig"]["service"]["name"].as_str() {
            assert!(services.contains(service));
        }
    }
}
