//! Rules of a `HyperConverged` v1 that its schema cannot express. Pure.
//!
//! Each problem names the field by its path in v1. The schema of the definition refuses wrong types, enumerations,
//! patterns and pairs before these rules are asked.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::Duration;

use api::core::NodePlacement;
use api::hyperconverged::v1::{
    Deployment, HyperConverged, HyperConvergedSpec, Networking, Security, Storage, Virtualization,
    WorkloadSources,
};
use api::hyperconverged::{Certificates, HostDevices, TlsProfile};
use api::net::Mac;
use api::{duration, quantity};

use super::patch;

/// Shortest validity and shortest overlap of certificates.
const SHORTEST: Duration = Duration::from_secs(600);
/// Annotation that switches a boot image import on or off.
const ENABLE: &str = "dataimportcrontemplate.kubevirt.io/enable";
/// Annotation with the limits of API requests.
pub(super) const TUNING: &str = "hco.kubevirt.io/tuningPolicy";
/// Cipher suites of which HTTP/2 requires one below TLS 1.3, by OpenSSL's name.
const HTTP2: [&str; 2] = ["ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES128-GCM-SHA256"];

/// A problem of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Path of the field in v1.
    pub field: String,
    /// The defect, without the path.
    pub text: String,
}

/// Collects problems.
#[derive(Default)]
struct ProblemList(Vec<Problem>);

impl ProblemList {
    fn add(&mut self, field: impl Into<String>, text: impl Into<String>) {
        self.0.push(Problem { field: field.into(), text: text.into() });
    }

    fn unless(&mut self, holds: bool, field: impl Into<String>, text: impl Into<String>) {
        if !holds {
            self.add(field, text);
        }
    }
}

/// All problems of an object.
pub fn problems(object: &HyperConverged) -> Vec<Problem> {
    let mut found = ProblemList::default();
    annotations(object, &mut found);
    let HyperConvergedSpec {
        deployment,
        feature_gates: _,
        networking,
        observability: _,
        security,
        storage,
        virtualization,
        workload_sources,
    } = &object.spec;
    if let Some(security) = security {
        of_security(security, &mut found);
    }
    if let Some(deployment) = deployment {
        of_deployment(deployment, &mut found);
    }
    if let Some(networking) = networking {
        of_networking(networking, &mut found);
    }
    if let Some(storage) = storage {
        of_storage(storage, &mut found);
    }
    if let Some(virtualization) = virtualization {
        of_virtualization(virtualization, &mut found);
    }
    if let Some(sources) = workload_sources {
        of_sources(sources, &mut found);
    }
    found.0
}

fn annotations(object: &HyperConverged, found: &mut ProblemList) {
    let all = &object.metadata.annotations;
    for child in patch::ANNOTATIONS {
        if let Some(Err(error)) = all.get(child).map(|text| patch::parse(text)) {
            found.add(format!("metadata.annotations[{child}]"), error.to_string());
        }
    }
    let wanted = object.spec.virtualization.as_ref().and_then(|one| one.tuning_policy.as_deref());
    let field = format!("metadata.annotations[{TUNING}]");
    match (all.get(TUNING), wanted) {
        (Some(text), _) => {
            found.unless(
                tuning(text).is_some(),
                field,
                r#"must be like {"qps": 100, "burst": 200}, both positive"#,
            );
        }
        (None, Some("annotation")) => {
            found.add("spec.virtualization.tuningPolicy", format!("the annotation {TUNING} is missing"));
        }
        (None, _) => {}
    }
}

/// Limits of API requests in the annotation: per second, at once.
pub(super) fn tuning(text: &str) -> Option<(f64, i64)> {
    let value: serde_json::Value = serde_json::from_str(text).ok()?;
    let (qps, burst) = (value["qps"].as_f64()?, value["burst"].as_i64()?);
    (qps > 0.0 && burst > 0).then_some((qps, burst))
}

fn of_security(security: &Security, found: &mut ProblemList) {
    if let Some(certificates) = &security.cert_config {
        of_certificates(certificates, found);
    }
    if let Some(profile) = &security.tls_security_profile {
        of_tls(profile, found);
    }
}

fn of_certificates(certificates: &Certificates, found: &mut ProblemList) {
    let base = "spec.security.certConfig";
    let mut time = |field: String, text: Option<&String>, default: u64| {
        let Some(text) = text else { return Some(Duration::from_secs(default * 3600)) };
        match duration::parse(text) {
            None => found.add(field, format!("{text:?} is not a duration such as 48h0m0s")),
            Some(time) if time < SHORTEST => found.add(field, format!("{text} is shorter than 10m0s")),
            Some(time) => return Some(time),
        }
        None
    };
    let (ca, server) = (certificates.ca.as_ref(), certificates.server.as_ref());
    let ca_duration = time(format!("{base}.ca.duration"), ca.and_then(|one| one.duration.as_ref()), 48);
    let ca_before = time(format!("{base}.ca.renewBefore"), ca.and_then(|one| one.renew_before.as_ref()), 24);
    let duration = time(format!("{base}.server.duration"), server.and_then(|one| one.duration.as_ref()), 24);
    let before =
        time(format!("{base}.server.renewBefore"), server.and_then(|one| one.renew_before.as_ref()), 12);
    let above = |one: Option<Duration>, other: Option<Duration>| one.zip(other).is_some_and(|(a, b)| a > b);
    found.unless(
        !above(ca_before, ca_duration),
        format!("{base}.ca.renewBefore"),
        "is longer than ca.duration",
    );
    found.unless(
        !above(before, duration),
        format!("{base}.server.renewBefore"),
        "is longer than server.duration",
    );
    found.unless(
        !above(duration, ca_duration),
        format!("{base}.server.duration"),
        "is longer than ca.duration: certificates must not outlive their CA",
    );
}

fn of_tls(profile: &TlsProfile, found: &mut ProblemList) {
    let base = "spec.security.tlsSecurityProfile";
    let kind = profile.kind.as_deref().unwrap_or_default();
    let present = [
        ("Old", profile.old.is_some()),
        ("Intermediate", profile.intermediate.is_some()),
        ("Modern", profile.modern.is_some()),
        ("Custom", profile.custom.is_some()),
    ];
    found.unless(!kind.is_empty() || !present.iter().any(|one| one.1), format!("{base}.type"), "is missing");
    let Some(custom) = &profile.custom else {
        return found.unless(kind != "Custom", format!("{base}.custom"), "is required for type Custom");
    };
    if kind != "Custom" {
        return;
    }
    let version = custom.min_tls_version.as_deref().unwrap_or_default();
    let ciphers = format!("{base}.custom.ciphers");
    match version {
        "" => found.add(format!("{base}.custom.minTLSVersion"), "is required for type Custom"),
        "VersionTLS13" => {
            found.unless(
                custom.ciphers.is_empty(),
                ciphers,
                "cannot be set: TLS 1.3 has a fixed set of ciphers",
            );
        }
        _ => {
            let any = custom.ciphers.iter().any(|one| HTTP2.contains(&one.as_str()));
            found.unless(
                any,
                ciphers,
                format!("must contain {} or {}, which HTTP/2 requires", HTTP2[0], HTTP2[1]),
            );
        }
    }
}

fn of_deployment(deployment: &Deployment, found: &mut ProblemList) {
    let placements = deployment.node_placements.clone().unwrap_or_default();
    for (name, placement) in [("infra", placements.infra), ("workload", placements.workload)] {
        if let Some(placement) = placement {
            of_placement(&placement, &format!("spec.deployment.nodePlacements.{name}"), found);
        }
    }
}

/// Problems of a placement of pods whose field is `base`.
pub fn placement(placement: &NodePlacement, base: &str) -> Vec<Problem> {
    let mut found = ProblemList::default();
    of_placement(placement, base, &mut found);
    found.0
}

fn of_placement(placement: &NodePlacement, base: &str, found: &mut ProblemList) {
    let affinity = placement.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|one| one.required_during_scheduling_ignored_during_execution.as_ref());
    let path = format!(
        "{base}.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
    );
    if let Some(required) = required {
        found.unless(!required.node_selector_terms.is_empty(), &path, "must have at least one term");
    }
    for (index, term) in required.iter().flat_map(|one| &one.node_selector_terms).enumerate() {
        for (number, requirement) in term.match_expressions.iter().enumerate() {
            let path = format!("{path}[{index}].matchExpressions[{number}]");
            let count = requirement.values.len();
            let integer = requirement.values.iter().all(|one| one.parse::<i64>().is_ok());
            found.unless(label_key(&requirement.key), format!("{path}.key"), "is not the name of a label");
            let (valid, text) = match requirement.operator.as_str() {
                "In" | "NotIn" => (count > 0, "must not be empty for In and NotIn"),
                "Exists" | "DoesNotExist" => (count == 0, "must be empty for Exists and DoesNotExist"),
                "Gt" | "Lt" => (count == 1 && integer, "must be one integer for Gt and Lt"),
                _ => {
                    found
                        .add(format!("{path}.operator"), "must be In, NotIn, Exists, DoesNotExist, Gt or Lt");
                    continue;
                }
            };
            found.unless(valid, format!("{path}.values"), text);
        }
    }
    for (index, toleration) in placement.tolerations.iter().enumerate() {
        let path = format!("{base}.tolerations[{index}]");
        let effect = toleration.effect.as_deref().unwrap_or_default();
        let known = ["", "NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&effect);
        found.unless(known, format!("{path}.effect"), "must be NoSchedule, PreferNoSchedule or NoExecute");
        let operator = toleration.operator.as_deref().unwrap_or("Equal");
        found.unless(
            ["Equal", "Exists"].contains(&operator),
            format!("{path}.operator"),
            "must be Equal or Exists",
        );
    }
    for key in placement.node_selector.keys() {
        found.unless(label_key(key), format!("{base}.nodeSelector[{key}]"), "is not the name of a label");
    }
}

/// Whether a text may be the name of a label: `NAME` or `DOMAIN/NAME`.
fn label_key(key: &str) -> bool {
    let name = key.split_once('/').map_or(key, |(_, name)| name);
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let ends = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    name.len() <= 63
        && name.bytes().all(inner)
        && ends(name.bytes().next())
        && ends(name.bytes().last())
        && key.split_once('/').is_none_or(|(domain, _)| !domain.is_empty() && domain.len() <= 253)
}

fn of_networking(networking: &Networking, found: &mut ProblemList) {
    if let Some(address) = &networking.kube_secondary_dns_name_server_ip {
        let path = "spec.networking.kubeSecondaryDNSNameServerIP";
        found.unless(
            address.parse::<Ipv4Addr>().is_ok(),
            path,
            format!("{address:?} is not an IPv4 address"),
        );
    }
    let range = networking.kube_mac_pool_configuration.clone().unwrap_or_default();
    let path = |end: &str| format!("spec.networking.kubeMacPoolConfiguration.{end}");
    let address = |text: &Option<String>| text.as_ref().and_then(|text| Mac::parse(text));
    let (start, end) = (address(&range.range_start), address(&range.range_end));
    for (name, one) in [("rangeStart", start), ("rangeEnd", end)] {
        let usable = one.is_none_or(Mac::is_usable);
        found.unless(usable, path(name), "is zero or a group address, which no interface can have");
    }
    if let Some((start, end)) = start.zip(end) {
        found.unless(start <= end, path("rangeEnd"), "is below rangeStart");
    }
}

fn of_storage(storage: &Storage, found: &mut ProblemList) {
    let classes = storage.filesystem_overhead.iter().flat_map(|one| &one.storage_class);
    for (class, value) in classes {
        let share = value.parse::<f64>().ok().filter(|share| (0.0..1.0).contains(share));
        let path = format!("spec.storage.filesystemOverhead.storageClass[{class}]");
        found.unless(share.is_some(), path, format!("{value:?} is not a share from 0 to 1"));
    }
    let requirements = storage.workload_resource_requirements.clone().unwrap_or_default();
    for (name, request) in &requirements.requests {
        let below =
            requirements.limits.get(name).is_none_or(|limit| match (request.bytes(), limit.bytes()) {
                (Ok(request), Ok(limit)) => request <= limit,
                _ => true,
            });
        let path = format!("spec.storage.workloadResourceRequirements.requests[{name}]");
        found.unless(below, path, "is above the limit");
    }
    for (index, registry) in
        storage.storage_import.iter().flat_map(|one| &one.insecure_registries).enumerate()
    {
        let valid =
            !registry.is_empty() && !registry.contains('/') && !registry.contains(char::is_whitespace);
        let path = format!("spec.storage.storageImport.insecureRegistries[{index}]");
        found.unless(valid, path, format!("{registry:?} is not HOST or HOST:PORT"));
    }
}

fn of_virtualization(virtualization: &Virtualization, found: &mut ProblemList) {
    let base = "spec.virtualization";
    if let Some(migration) = &virtualization.live_migration_config {
        let path = |field: &str| format!("{base}.liveMigrationConfig.{field}");
        if let Some(bandwidth) = &migration.bandwidth_per_migration {
            let valid = quantity::bytes(bandwidth).is_ok();
            found.unless(
                valid,
                path("bandwidthPerMigration"),
                format!("{bandwidth:?} is not an amount of bytes"),
            );
        }
        for (field, value) in [
            ("parallelMigrationsPerCluster", migration.parallel_migrations_per_cluster.map(i64::from)),
            (
                "parallelOutboundMigrationsPerNode",
                migration.parallel_outbound_migrations_per_node.map(i64::from),
            ),
            ("completionTimeoutPerGiB", migration.completion_timeout_per_gi_b),
            ("progressTimeout", migration.progress_timeout),
        ] {
            found.unless(value.is_none_or(|value| value > 0), path(field), "must be greater than 0");
        }
    }
    if let Some(update) = &virtualization.workload_update_strategy {
        let path = |field: &str| format!("{base}.workloadUpdateStrategy.{field}");
        for (index, method) in update.workload_update_methods.iter().enumerate() {
            let known = ["LiveMigrate", "Evict"].contains(&method.as_str());
            let path = format!("{}[{index}]", path("workloadUpdateMethods"));
            found.unless(known, path, format!("{method:?} is neither LiveMigrate nor Evict"));
        }
        if let Some(interval) = &update.batch_eviction_interval {
            let valid = duration::parse(interval).is_some();
            let text = format!("{interval:?} is not a duration such as 1m0s");
            found.unless(valid, path("batchEvictionInterval"), text);
        }
        let size = update.batch_eviction_size.unwrap_or(1);
        found.unless(size > 0, path("batchEvictionSize"), "must be greater than 0");
    }
    if let Some(update) = &virtualization.live_update_configuration {
        let path = |field: &str| format!("{base}.liveUpdateConfiguration.{field}");
        for (field, value) in
            [("maxCpuSockets", update.max_cpu_sockets), ("maxHotplugRatio", update.max_hotplug_ratio)]
        {
            found.unless(value.is_none_or(|value| value > 0), path(field), "must be greater than 0");
        }
    }
    if let Some(devices) = &virtualization.permitted_host_devices {
        of_devices(devices, &format!("{base}.permittedHostDevices"), found);
    }
    for (index, model) in virtualization.obsolete_cpu_models.iter().enumerate() {
        found.unless(!model.trim().is_empty(), format!("{base}.obsoleteCPUModels[{index}]"), "is empty");
    }
}

fn of_devices(devices: &HostDevices, base: &str, found: &mut ProblemList) {
    let hex = |text: &str| text.len() == 4 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let resource =
        |name: &str| name.split_once('/').is_some_and(|(domain, _)| domain.contains('.')) && label_key(name);
    let wrong = |name: &str| format!("{name:?} is not the name of a resource such as vendor.com/DEVICE");
    for (index, device) in devices.pci_host_devices.iter().enumerate() {
        let path = format!("{base}.pciHostDevices[{index}]");
        let valid =
            device.pci_device_selector.split_once(':').is_some_and(|(vendor, id)| hex(vendor) && hex(id));
        let text =
            format!("{:?} is not VENDOR:DEVICE, four hexadecimal digits each", device.pci_device_selector);
        found.unless(valid, format!("{path}.pciDeviceSelector"), text);
        found.unless(
            resource(&device.resource_name),
            format!("{path}.resourceName"),
            wrong(&device.resource_name),
        );
    }
    for (index, device) in devices.mediated_devices.iter().enumerate() {
        let path = format!("{base}.mediatedDevices[{index}]");
        found.unless(!device.mdev_name_selector.is_empty(), format!("{path}.mdevNameSelector"), "is empty");
        found.unless(
            resource(&device.resource_name),
            format!("{path}.resourceName"),
            wrong(&device.resource_name),
        );
    }
    for (index, device) in devices.usb_host_devices.iter().enumerate() {
        let path = format!("{base}.usbHostDevices[{index}]");
        found.unless(
            resource(&device.resource_name),
            format!("{path}.resourceName"),
            wrong(&device.resource_name),
        );
        for (number, selector) in device.selectors.iter().enumerate() {
            for (field, value) in [("vendor", &selector.vendor), ("product", &selector.product)] {
                let path = format!("{path}.selectors[{number}].{field}");
                found.unless(hex(value), path, format!("{value:?} is not four hexadecimal digits"));
            }
        }
    }
}

fn of_sources(sources: &WorkloadSources, found: &mut ProblemList) {
    let base = "spec.workloadSources";
    for (field, name) in [
        ("commonBootImageNamespace", &sources.common_boot_image_namespace),
        ("commonTemplatesNamespace", &sources.common_templates_namespace),
    ] {
        let label = |name: &str| {
            let valid = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
            !name.is_empty()
                && name.len() <= 63
                && name.bytes().all(valid)
                && !name.starts_with('-')
                && !name.ends_with('-')
        };
        let valid = name.as_deref().is_none_or(label);
        found.unless(valid, format!("{base}.{field}"), "is not the name of a namespace");
    }
    let mut names = BTreeSet::new();
    for (index, template) in sources.data_import_cron_templates.iter().enumerate() {
        let path = format!("{base}.dataImportCronTemplates[{index}]");
        let metadata = template.metadata.clone().unwrap_or_default();
        let name = metadata.name.unwrap_or_default();
        if name.is_empty() {
            found.add(format!("{path}.metadata.name"), "is missing");
        } else if !names.insert(name.clone()) {
            found.add(format!("{path}.metadata.name"), format!("{name:?} is used twice"));
        }
        let enabled = metadata.annotations.get(ENABLE).map(|text| text.to_ascii_lowercase());
        match enabled.as_deref() {
            None | Some("true") => {
                found.unless(template.spec.is_some(), format!("{path}.spec"), "is missing")
            }
            Some("false") => {}
            Some(other) => {
                let path = format!("{path}.metadata.annotations[{ENABLE}]");
                found.add(path, format!("{other:?} is neither true nor false"));
            }
        }
        let Some(spec) = &template.spec else { continue };
        let registry = spec.template.spec.source.as_ref().is_some_and(|source| source.registry.is_some());
        let path = format!("{path}.spec.template.spec.source");
        found.unless(registry, path, "must be registry");
    }
}
