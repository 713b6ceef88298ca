//! Spec of the KubeVirt object of a `HyperConverged`. Pure.

use api::hyperconverged::v1::{
    HyperConvergedSpec, MediatedDevices, Networking, VirtualMachineOptions, Virtualization,
};
use api::hyperconverged::{HostDevices, LiveMigration, WorkloadUpdate};
use serde_json::{Value, json};

use super::check;
use super::input::{Input, extend, value};

/// Gates of KubeVirt that are always on.
const ALWAYS: [&str; 4] = ["CPUManager", "HostDevices", "KubevirtSeccompProfile", "Snapshot"];
/// Gates of KubeVirt that are switched by gates of HyperConverged.
const SWITCHED: [(&str, &str); 9] = [
    ("alignCPUs", "AlignCPUs"),
    ("containerPathVolumes", "ContainerPathVolumes"),
    ("decentralizedLiveMigration", "DecentralizedLiveMigration"),
    ("declarativeHotplugVolumes", "DeclarativeHotplugVolumes"),
    ("downwardMetrics", "DownwardMetrics"),
    ("incrementalBackup", "IncrementalBackup"),
    ("objectGraph", "ObjectGraph"),
    ("persistentReservation", "PersistentReservation"),
    ("template", "Template"),
];
/// Gates of KubeVirt that are on by default there, and off here unless a gate of HyperConverged switches them on.
const DEFAULTS: [&str; 8] = [
    "DecentralizedLiveMigration",
    "DeclarativeHotplugVolumes",
    "GPUsWithDRA",
    "ImageVolume",
    "NodeRestriction",
    "PasstBinding",
    "RebootPolicy",
    "Template",
];
/// CPU models that are never offered; users add to them.
const OBSOLETE: [&str; 16] = [
    "486",
    "pentium",
    "pentium2",
    "pentium3",
    "pentiumpro",
    "coreduo",
    "n270",
    "core2duo",
    "Conroe",
    "athlon",
    "phenom",
    "qemu64",
    "qemu32",
    "kvm64",
    "kvm32",
    "Opteron_G1",
];
/// OpenSSL's and IANA's names of the cipher suites that the servers have.
const CIPHERS: [(&str, &str); 6] = [
    ("ECDHE-ECDSA-AES128-GCM-SHA256", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"),
    ("ECDHE-RSA-AES128-GCM-SHA256", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"),
    ("ECDHE-ECDSA-AES256-GCM-SHA384", "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"),
    ("ECDHE-RSA-AES256-GCM-SHA384", "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"),
    ("ECDHE-ECDSA-CHACHA20-POLY1305", "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"),
    ("ECDHE-RSA-CHACHA20-POLY1305", "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"),
];

pub(super) fn spec(input: &Input<'_>) -> Value {
    let [[ca, ca_before], [server, server_before]] = input.lifetimes();
    let [infra, workload] = input.placements();
    let virtualization = input.spec().virtualization.clone().unwrap_or_default();
    let update = virtualization.workload_update_strategy.clone().unwrap_or_default();
    let mut spec = json!({
        "uninstallStrategy": input.uninstall_strategy(),
        "certificateRotateStrategy": {"selfSigned": {
            "ca": {"duration": ca, "renewBefore": ca_before},
            "server": {"duration": server, "renewBefore": server_before},
        }},
        "workloadUpdateStrategy": updates(&update),
        "configuration": configuration(input, &virtualization),
    });
    let mut control = json!({});
    extend(&mut control, [("nodePlacement", infra.unwrap_or_default())]);
    if !input.facts.highly_available() {
        control["replicas"] = json!(1);
    }
    let mut workloads = json!({});
    extend(&mut workloads, [("nodePlacement", workload.unwrap_or_default())]);
    extend(&mut spec, [("infra", control), ("workloads", workloads)]);
    spec
}

fn updates(update: &WorkloadUpdate) -> Value {
    let methods = &update.workload_update_methods;
    json!({
        "workloadUpdateMethods": methods,
        "batchEvictionSize": update.batch_eviction_size.unwrap_or(10),
        "batchEvictionInterval": update.batch_eviction_interval.as_deref().unwrap_or("1m0s"),
    })
}

fn configuration(input: &Input<'_>, virtualization: &Virtualization) -> Value {
    let Virtualization {
        auto_cpu_limit_namespace_label_selector,
        changed_block_tracking_label_selectors,
        eviction_strategy,
        higher_workload_density: _,
        hypervisors,
        ksm_configuration,
        live_migration_config,
        live_update_configuration,
        mediated_devices_configuration,
        obsolete_cpu_models,
        permitted_host_devices,
        role_aggregation_strategy,
        tuning_policy,
        virtual_machine_options,
        vmi_cpu_allocation_ratio: _,
        workload_update_strategy: _,
    } = virtualization;
    let HyperConvergedSpec { networking, storage, workload_sources, .. } = input.spec();
    let storage = storage.clone().unwrap_or_default();
    let sources = workload_sources.clone().unwrap_or_default();
    let options = virtual_machine_options.clone().unwrap_or_default();
    let default_strategy = if input.facts.highly_available() { "LiveMigrate" } else { "None" };
    let obsolete = OBSOLETE.iter().copied().chain(obsolete_cpu_models.iter().map(String::as_str));
    let mut all = json!({
        "developerConfiguration": developer(input, virtualization),
        "evictionStrategy": eviction_strategy.as_deref().unwrap_or(default_strategy),
        "migrations": migrations(&live_migration_config.clone().unwrap_or_default()),
        "network": networks(&networking.clone().unwrap_or_default()),
        "obsoleteCPUModels": obsolete.map(|model| (model.to_owned(), json!(true))).collect::<serde_json::Map<_, _>>(),
        "seccompConfiguration": {"virtualMachineInstanceProfile": {
            "customProfile": {"localhostProfile": "kubevirt/kubevirt.json"},
        }},
        "tlsConfiguration": tls(input),
        "vmRolloutStrategy": "LiveUpdate",
    });
    if options.disable_free_page_reporting == Some(true) {
        all["virtualMachineOptions"]["disableFreePageReporting"] = json!({});
    }
    if options.disable_serial_console_log == Some(true) {
        all["virtualMachineOptions"]["disableSerialConsoleLog"] = json!({});
    }
    let VirtualMachineOptions { default_cpu_model, default_runtime_class, .. } = options;
    extend(
        &mut all,
        [
            ("autoCPULimitNamespaceLabelSelector", value(auto_cpu_limit_namespace_label_selector)),
            ("changedBlockTrackingLabelSelectors", value(changed_block_tracking_label_selectors)),
            ("commonInstancetypesDeployment", value(&sources.common_instancetypes_deployment)),
            ("cpuModel", value(&default_cpu_model)),
            ("defaultRuntimeClass", value(&default_runtime_class)),
            ("hypervisors", value(hypervisors)),
            ("instancetype", value(&sources.instancetype_config)),
            ("liveUpdateConfiguration", value(live_update_configuration)),
            ("persistentReservationConfiguration", value(&storage.persistent_reservation_configuration)),
            ("roleAggregationStrategy", value(role_aggregation_strategy)),
            ("vmStateStorageClass", value(&storage.vm_state_storage_class)),
        ],
    );
    if let Some(configuration) = ksm_configuration {
        // An empty selector means all nodes, so the field stays.
        all["ksmConfiguration"] = value(configuration);
    }
    if let Some(permitted) = permitted_host_devices {
        // An empty list permits none, no list all.
        all["permittedHostDevices"] = devices(permitted);
    }
    let off = input.gate("disableMDevConfiguration");
    if off || mediated_devices_configuration.is_some() {
        all["mediatedDevicesConfiguration"] =
            mediated(&mediated_devices_configuration.clone().unwrap_or_default(), off);
    }
    if let Some((qps, burst)) = limits(input, tuning_policy.as_deref()) {
        for component in
            ["apiConfiguration", "controllerConfiguration", "handlerConfiguration", "webhookConfiguration"]
        {
            all[component]["restClient"]["rateLimiter"]["tokenBucketRateLimiter"] =
                json!({"qps": qps, "burst": burst});
        }
    }
    all
}

/// Limits of API requests. The policy `highBurst` has no effect any more, as upstream.
fn limits(input: &Input<'_>, policy: Option<&str>) -> Option<(f64, i64)> {
    let text = input.owner.metadata.annotations.get(check::TUNING)?;
    (policy == Some("annotation")).then(|| check::tuning(text)).flatten()
}

fn developer(input: &Input<'_>, virtualization: &Virtualization) -> Value {
    let mut on: Vec<&str> = ALWAYS.to_vec();
    if !input.facts.emulation {
        on.push("HypervStrictCheck");
    }
    on.extend(SWITCHED.iter().filter(|(ours, _)| input.gate(ours)).map(|(_, theirs)| *theirs));
    on.sort_unstable();
    let off: Vec<&str> = DEFAULTS.iter().copied().filter(|name| !on.contains(name)).collect();
    let density = virtualization.higher_workload_density.clone().unwrap_or_default();
    let levels = input.deployment.log_verbosity_config.clone().unwrap_or_default();
    let mut developer = json!({
        "featureGates": on,
        "disabledFeatureGates": off,
        "memoryOvercommit": density.memory_overcommit_percentage.unwrap_or(100),
        "cpuAllocationRatio": virtualization.vmi_cpu_allocation_ratio.unwrap_or(10),
    });
    if input.facts.emulation {
        developer["useEmulation"] = json!(true);
    }
    extend(&mut developer, [("logVerbosity", value(&levels.kubevirt))]);
    developer
}

fn migrations(settings: &LiveMigration) -> Value {
    let LiveMigration {
        allow_auto_converge,
        allow_post_copy,
        allow_workload_disruption,
        bandwidth_per_migration,
        completion_timeout_per_gi_b,
        network,
        parallel_migrations_per_cluster,
        parallel_outbound_migrations_per_node,
        progress_timeout,
    } = settings;
    let mut all = json!({
        "allowAutoConverge": allow_auto_converge.unwrap_or(false),
        "allowPostCopy": allow_post_copy.unwrap_or(false),
        "allowWorkloadDisruption": allow_workload_disruption.unwrap_or(false),
        "completionTimeoutPerGiB": completion_timeout_per_gi_b.unwrap_or(20),
        "parallelMigrationsPerCluster": parallel_migrations_per_cluster.unwrap_or(5),
        "parallelOutboundMigrationsPerNode": parallel_outbound_migrations_per_node.unwrap_or(1),
        "progressTimeout": progress_timeout.unwrap_or(150),
    });
    extend(
        &mut all,
        [("bandwidthPerMigration", value(bandwidth_per_migration)), ("network", value(network))],
    );
    all
}

fn networks(networking: &Networking) -> Value {
    let mut all = json!({"defaultNetworkInterface": "masquerade"});
    extend(&mut all, [("binding", value(&networking.network_binding))]);
    all
}

fn devices(devices: &HostDevices) -> Value {
    let external = |object: &mut Value, external: Option<bool>| {
        extend(object, [("externalResourceProvider", value(&external))]);
    };
    let pci = devices.pci_host_devices.iter().filter(|one| one.disabled != Some(true)).map(|one| {
        let mut object =
            json!({"pciVendorSelector": one.pci_device_selector, "resourceName": one.resource_name});
        external(&mut object, one.external_resource_provider);
        object
    });
    let mediated = devices.mediated_devices.iter().filter(|one| one.disabled != Some(true)).map(|one| {
        let mut object =
            json!({"mdevNameSelector": one.mdev_name_selector, "resourceName": one.resource_name});
        external(&mut object, one.external_resource_provider);
        object
    });
    let usb = devices.usb_host_devices.iter().filter(|one| one.disabled != Some(true)).map(|one| {
        let mut object = json!({"resourceName": one.resource_name, "selectors": value(&one.selectors)});
        external(&mut object, one.external_resource_provider);
        object
    });
    let mut all = json!({});
    extend(
        &mut all,
        [("pciHostDevices", pci.collect()), ("mediatedDevices", mediated.collect()), ("usb", usb.collect())],
    );
    all
}

fn mediated(settings: &MediatedDevices, off: bool) -> Value {
    let mut all = json!({"enabled": settings.enabled.unwrap_or(true) && !off});
    extend(
        &mut all,
        [
            ("mediatedDeviceTypes", value(&settings.mediated_device_types)),
            ("nodeMediatedDeviceTypes", value(&settings.node_mediated_device_types)),
        ],
    );
    all
}

/// KubeVirt knows a lowest version and ciphers, not profiles.
fn tls(input: &Input<'_>) -> Value {
    let profile = input.tls_profile();
    let custom = profile["custom"]["minTLSVersion"].as_str();
    let version = api::component::least_tls_version(profile["type"].as_str(), custom);
    let named = profile["custom"]["ciphers"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let ciphers: Vec<&str> =
        named.filter_map(|name| CIPHERS.iter().find(|one| one.0 == name).map(|one| one.1)).collect();
    let mut all = json!({"minTLSVersion": version});
    extend(&mut all, [("ciphers", json!(ciphers))]);
    all
}
