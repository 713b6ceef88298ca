//! The metrics of guests, with upstream's names and labels, from libvirt's counters and from their objects. Pure.
//!
//! Not here: how the counters are read.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use api::launcher::{AFFINITY, Stats};
use serde_json::Value;
use serve::metrics::{Kind, Page};
use virt::vnic;

use super::Report;
use crate::guests::instance::Instance;
use crate::streams::Counts;

/// How a counter becomes a metric's value.
#[derive(Clone, Copy, Debug)]
enum Unit {
    /// As it is.
    Plain,
    /// KiB to bytes.
    Kibibytes,
    /// Nanoseconds to seconds.
    Nanoseconds,
}

/// A metric: name, type, help, the end of libvirt's name of the counter, unit.
type Metric = (&'static str, Kind, &'static str, &'static str, Unit);

use Kind::{Counter, Gauge};
use Unit::{Kibibytes, Nanoseconds, Plain};

/// Of a whole guest.
const GUEST: [Metric; 15] = [
    (
        "kubevirt_vmi_cpu_usage_seconds_total",
        Counter,
        "Total CPU time spent in all modes (sum of both vcpu and hypervisor usage).",
        "cpu.time",
        Nanoseconds,
    ),
    (
        "kubevirt_vmi_cpu_user_usage_seconds_total",
        Counter,
        "Total CPU time spent in user mode.",
        "cpu.user",
        Nanoseconds,
    ),
    (
        "kubevirt_vmi_cpu_system_usage_seconds_total",
        Counter,
        "Total CPU time spent in system mode.",
        "cpu.system",
        Nanoseconds,
    ),
    (
        "kubevirt_vmi_memory_resident_bytes",
        Gauge,
        "Resident set size of the process running the domain.",
        "balloon.rss",
        Kibibytes,
    ),
    (
        "kubevirt_vmi_memory_available_bytes",
        Gauge,
        "Amount of usable memory as seen by the domain.",
        "balloon.available",
        Kibibytes,
    ),
    (
        "kubevirt_vmi_memory_unused_bytes",
        Gauge,
        "The amount of memory left completely unused by the guest.",
        "balloon.unused",
        Kibibytes,
    ),
    (
        "kubevirt_vmi_memory_usable_bytes",
        Gauge,
        "The amount of memory that the balloon can reclaim without making the guest swap.",
        "balloon.usable",
        Kibibytes,
    ),
    (
        "kubevirt_vmi_memory_cached_bytes",
        Gauge,
        "The amount of memory that caches I/O and can be reclaimed.",
        "balloon.disk_caches",
        Kibibytes,
    ),
    (
        "kubevirt_vmi_memory_swap_in_traffic_bytes",
        Gauge,
        "The total amount of data read from the guest's swap space.",
        "balloon.swap_in",
        Kibibytes,
    ),
    (
        "kubevirt_vmi_memory_swap_out_traffic_bytes",
        Gauge,
        "The total amount of memory written to the guest's swap space.",
        "balloon.swap_out",
        Kibibytes,
    ),
    (
        "kubevirt_vmi_memory_pgmajfault_total",
        Counter,
        "The number of page faults when disk IO was required.",
        "balloon.major_fault",
        Plain,
    ),
    (
        "kubevirt_vmi_memory_pgminfault_total",
        Counter,
        "The number of other page faults, when disk IO was not required.",
        "balloon.minor_fault",
        Plain,
    ),
    (
        "kubevirt_vmi_memory_actual_balloon_bytes",
        Gauge,
        "Current balloon size in bytes.",
        "balloon.current",
        Kibibytes,
    ),
    (
        "kubevirt_vmi_memory_domain_bytes",
        Gauge,
        "The amount of memory in bytes allocated to the domain.",
        "balloon.maximum",
        Kibibytes,
    ),
    (
        "kubevirt_vmi_node_cpu_affinity",
        Gauge,
        "Number of VMI CPU affinities to node physical cores.",
        AFFINITY,
        Plain,
    ),
];

/// Of each vCPU; the first also has its state as a label.
const VCPU: [Metric; 3] = [
    (
        "kubevirt_vmi_vcpu_seconds_total",
        Counter,
        "Total amount of time spent in each state by each vcpu.",
        "time",
        Nanoseconds,
    ),
    (
        "kubevirt_vmi_vcpu_wait_seconds_total",
        Counter,
        "Amount of time spent by each vcpu while waiting on I/O.",
        "wait",
        Nanoseconds,
    ),
    (
        "kubevirt_vmi_vcpu_delay_seconds_total",
        Counter,
        "Amount of time spent by each vcpu waiting in the queue instead of running.",
        "delay",
        Nanoseconds,
    ),
];

/// Of each network interface.
const INTERFACE: [Metric; 8] = [
    (
        "kubevirt_vmi_network_receive_bytes_total",
        Counter,
        "Total network traffic received in bytes.",
        "rx.bytes",
        Plain,
    ),
    (
        "kubevirt_vmi_network_transmit_bytes_total",
        Counter,
        "Total network traffic transmitted in bytes.",
        "tx.bytes",
        Plain,
    ),
    (
        "kubevirt_vmi_network_receive_packets_total",
        Counter,
        "Total network traffic received packets.",
        "rx.pkts",
        Plain,
    ),
    (
        "kubevirt_vmi_network_transmit_packets_total",
        Counter,
        "Total network traffic transmitted packets.",
        "tx.pkts",
        Plain,
    ),
    (
        "kubevirt_vmi_network_receive_errors_total",
        Counter,
        "Total network received error packets.",
        "rx.errs",
        Plain,
    ),
    (
        "kubevirt_vmi_network_transmit_errors_total",
        Counter,
        "Total network transmitted error packets.",
        "tx.errs",
        Plain,
    ),
    (
        "kubevirt_vmi_network_receive_packets_dropped_total",
        Counter,
        "The total number of rx packets dropped on vNIC interfaces.",
        "rx.drop",
        Plain,
    ),
    (
        "kubevirt_vmi_network_transmit_packets_dropped_total",
        Counter,
        "The total number of tx packets dropped on vNIC interfaces.",
        "tx.drop",
        Plain,
    ),
];

/// Of each disk.
const DISK: [Metric; 8] = [
    (
        "kubevirt_vmi_storage_iops_read_total",
        Counter,
        "Total number of I/O read operations.",
        "rd.reqs",
        Plain,
    ),
    (
        "kubevirt_vmi_storage_iops_write_total",
        Counter,
        "Total number of I/O write operations.",
        "wr.reqs",
        Plain,
    ),
    (
        "kubevirt_vmi_storage_read_traffic_bytes_total",
        Counter,
        "Total number of bytes read from storage.",
        "rd.bytes",
        Plain,
    ),
    (
        "kubevirt_vmi_storage_write_traffic_bytes_total",
        Counter,
        "Total number of written bytes.",
        "wr.bytes",
        Plain,
    ),
    (
        "kubevirt_vmi_storage_read_times_seconds_total",
        Counter,
        "Total time spent on read operations.",
        "rd.times",
        Nanoseconds,
    ),
    (
        "kubevirt_vmi_storage_write_times_seconds_total",
        Counter,
        "Total time spent on write operations.",
        "wr.times",
        Nanoseconds,
    ),
    ("kubevirt_vmi_storage_flush_requests_total", Counter, "Total storage flush requests.", "fl.reqs", Plain),
    (
        "kubevirt_vmi_storage_flush_times_seconds_total",
        Counter,
        "Total time spent on cache flushing.",
        "fl.times",
        Nanoseconds,
    ),
];

/// Of each filesystem: name, help, its field in upstream's form.
const FILESYSTEM: [(&str, &str, &str); 2] = [
    ("kubevirt_vmi_filesystem_capacity_bytes", "Total VM filesystem capacity in bytes.", "totalBytes"),
    ("kubevirt_vmi_filesystem_used_bytes", "Used VM filesystem capacity in bytes.", "usedBytes"),
];

/// Of each kind of stream: name, help, the kind.
const STREAM: [(&str, &str, &str); 4] = [
    (
        "kubevirt_console_active_connections",
        "Amount of active Console connections, broken down by namespace and vmi name.",
        "console",
    ),
    (
        "kubevirt_vnc_active_connections",
        "Amount of active VNC connections, broken down by namespace and vmi name.",
        "vnc",
    ),
    (
        "kubevirt_usbredir_active_connections",
        "Amount of active USB redirection connections, broken down by namespace and vmi name.",
        "usbredir",
    ),
    (
        "kubevirt_portforward_active_tunnels",
        "Amount of active portforward tunnels, broken down by namespace and vmi name.",
        "portforward",
    ),
];

/// Writes the metrics of a node's guests.
pub(super) fn write(page: &mut Page, node: &str, reports: &[Report]) {
    let guests = || {
        reports.iter().filter_map(move |report| {
            let labels =
                [("node", node), ("namespace", report.namespace.as_str()), ("name", report.name.as_str())];
            Some((labels, report.stats.as_ref()?))
        })
    };
    for (name, kind, help, counter, unit) in GUEST {
        page.begin(name, kind, help);
        for (labels, stats) in guests() {
            sample(page, name, &labels, stats.numbers.get(counter), unit);
        }
    }
    for (index, (name, kind, help, counter, unit)) in VCPU.into_iter().enumerate() {
        page.begin(name, kind, help);
        for (labels, stats) in guests() {
            for id in devices(stats, "vcpu") {
                let of = |what: &str| stats.numbers.get(&format!("vcpu.{id}.{what}"));
                let (id, state) = (id.to_string(), state(of("state")));
                let mut labels = [&labels[..], &[("id", id.as_str())]].concat();
                if index == 0 {
                    labels.push(("state", state));
                }
                sample(page, name, &labels, of(counter), unit);
            }
        }
    }
    for (name, kind, help, counter, unit) in INTERFACE {
        page.begin(name, kind, help);
        for (labels, stats) in guests() {
            for (device, of) in named(stats, "net") {
                let labels = [&labels[..], &[("interface", of), ("network", of)]].concat();
                sample(page, name, &labels, stats.numbers.get(&format!("{device}.{counter}")), unit);
            }
        }
    }
    let name = "kubevirt_vmi_network_traffic_bytes_total";
    page.begin(name, Counter, "[Deprecated] Total number of bytes sent and received.");
    for (labels, stats) in guests() {
        for (device, of) in named(stats, "net") {
            for direction in ["rx", "tx"] {
                let labels = [&labels[..], &[("interface", of), ("type", direction)]].concat();
                sample(page, name, &labels, stats.numbers.get(&format!("{device}.{direction}.bytes")), Plain);
            }
        }
    }
    for (name, kind, help, counter, unit) in DISK {
        page.begin(name, kind, help);
        for (labels, stats) in guests() {
            for (device, of) in named(stats, "block") {
                let labels = [&labels[..], &[("drive", of)]].concat();
                sample(page, name, &labels, stats.numbers.get(&format!("{device}.{counter}")), unit);
            }
        }
    }
    write_filesystems(page, node, reports);
}

fn write_filesystems(page: &mut Page, node: &str, reports: &[Report]) {
    for (name, help, field) in FILESYSTEM {
        page.begin(name, Gauge, help);
        for report in reports {
            // A guest may name one twice, and Prometheus refuses a page with the same sample twice.
            let mut seen = BTreeSet::new();
            for one in &report.filesystems {
                let text = |key: &str| one.get(key).and_then(Value::as_str).unwrap_or_default();
                let of = [text("diskName"), text("mountPoint"), text("fileSystemType")];
                let [disk, mount, kind] = of;
                if !seen.insert(of) {
                    continue;
                }
                let labels = [
                    ("node", node),
                    ("namespace", report.namespace.as_str()),
                    ("name", report.name.as_str()),
                    ("disk_name", disk),
                    ("mount_point", mount),
                    ("file_system_type", kind),
                ];
                page.sample(name, &labels, one.get(field).and_then(Value::as_u64).unwrap_or_default());
            }
        }
    }
}

/// Writes the network interfaces of a node's guests, as their objects have them.
pub(super) fn write_interfaces(page: &mut Page, node: &str, instances: &[Arc<Instance>]) {
    let name = "kubevirt_vmi_status_addresses";
    page.begin(name, Gauge, "The addresses of a VirtualMachineInstance, and the type of each.");
    for instance in instances {
        // A status may name one twice, and Prometheus refuses a page with the same sample twice.
        let mut seen = BTreeSet::new();
        let interfaces = instance.status.get("interfaces").and_then(Value::as_array);
        for one in interfaces.into_iter().flatten() {
            let text = |key: &str| one.get(key).and_then(Value::as_str).unwrap_or_default();
            let of = (text("name"), text("ipAddress"));
            let (network, address) = of;
            if address.is_empty() || !seen.insert(of) {
                continue;
            }
            let labels = [
                ("node", node),
                ("namespace", instance.namespace.as_str()),
                ("name", instance.name.as_str()),
                ("network_name", network),
                ("address", address),
                ("type", "InternalIP"),
            ];
            page.sample(name, &labels, 1);
        }
    }
    let name = "kubevirt_vmi_vnic_info";
    page.begin(name, Gauge, "Network interfaces of a VirtualMachineInstance: binding and network of each.");
    for instance in instances {
        for one in &instance.spec.domain.devices.interfaces {
            let networks = &instance.spec.networks;
            let (Some((kind, binding)), Some(network)) =
                (vnic::binding(one), vnic::network(networks, &one.name))
            else {
                continue;
            };
            let labels = [
                ("name", instance.name.as_str()),
                ("namespace", instance.namespace.as_str()),
                ("vnic_name", one.name.as_str()),
                ("binding_type", kind),
                ("network", network),
                ("binding_name", binding),
            ];
            page.sample(name, &labels, 1);
        }
    }
}

/// Writes the metrics of the agent itself, and of the streams that it serves.
pub(super) fn write_agent(page: &mut Page, ready: bool, counts: &Counts) {
    let help = "Indication for a virt-handler that is ready to serve requests.";
    page.single("kubevirt_virt_handler_ready_status", Gauge, help, u8::from(ready));
    for (name, help, kind) in STREAM {
        page.begin(name, Gauge, help);
        for ((key, _), count) in counts.open.iter().filter(|((_, of), _)| *of == kind) {
            page.sample(name, &[("namespace", key.namespace()), ("vmi", key.name())], count);
        }
    }
    let name = "kubevirt_vmi_last_api_connection_timestamp_seconds";
    page.begin(
        name,
        Gauge,
        "Virtual Machine Instance last API connection timestamp: VNC, console, portforward.",
    );
    for (key, time) in &counts.last {
        page.sample(name, &[("namespace", key.namespace()), ("vmi", key.name())], time);
    }
}

/// A sample, of a counter that there is.
fn sample(page: &mut Page, name: &str, labels: &[(&str, &str)], counter: Option<&u64>, unit: Unit) {
    let Some(counter) = counter.copied() else { return };
    match unit {
        Plain => page.sample(name, labels, counter),
        Kibibytes => page.sample(name, labels, counter.saturating_mul(1024)),
        Nanoseconds => page.sample(name, labels, Duration::from_nanos(counter).as_secs_f64()),
    }
}

/// The numbers of a guest's devices of a kind.
fn devices(stats: &Stats, kind: &str) -> BTreeSet<u32> {
    let rests = stats.numbers.keys().filter_map(|name| name.strip_prefix(kind)?.strip_prefix('.'));
    rests.filter_map(|rest| rest.split_once('.')?.0.parse().ok()).collect()
}

/// The devices of a kind that have names: how libvirt's names of their counters begin, and their names.
fn named<'a>(stats: &'a Stats, kind: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let of_kind = move |device: &str| device.strip_prefix(kind).is_some_and(|rest| rest.starts_with('.'));
    let names = stats.names.iter().map(|(device, name)| (device.as_str(), name.as_str()));
    names.filter(move |(device, _)| of_kind(device))
}

/// A vCPU's state (virVcpuState).
fn state(number: Option<&u64>) -> &'static str {
    match number {
        Some(0) => "offline",
        Some(1) => "running",
        Some(2) => "blocked",
        Some(_) | None => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use cluster::Key;
    use serde_json::json;

    use super::*;

    fn report() -> Report {
        let numbers = [
            ("cpu.time", 1_500_000_000),
            ("balloon.rss", 2),
            ("balloon.major_fault", 3),
            ("vcpu.current", 1),
            (AFFINITY, 4),
            ("vcpu.0.state", 1),
            ("vcpu.0.time", 250_000_000),
            ("vcpu.0.wait", 0),
            ("net.count", 1),
            ("net.0.rx.bytes", 10),
            ("net.0.tx.drop", 1),
            ("block.count", 2),
            ("block.0.rd.reqs", 4),
            ("block.0.fl.times", 5_000_000),
            ("block.1.wr.bytes", 6),
        ];
        let names = [("net.0", "default"), ("block.0", "root"), ("block.1", "sdb")];
        let owned = |text: &str| text.to_owned();
        let root = json!({"diskName": "vda1", "mountPoint": "/", "fileSystemType": "ext4", "usedBytes": 5, "totalBytes": 9});
        Report {
            namespace: owned("n"),
            name: owned("a"),
            stats: Some(Stats {
                numbers: numbers.into_iter().map(|(name, number)| (owned(name), number)).collect(),
                names: names.into_iter().map(|(device, name)| (owned(device), owned(name))).collect(),
            }),
            filesystems: vec![root.clone(), root],
        }
    }

    #[test]
    fn counters_have_upstreams_names_labels_and_units() {
        let mut page = Page::default();
        let silent = Report { namespace: "n".to_owned(), name: "silent".to_owned(), ..Report::default() };
        write(&mut page, "node1", &[report(), silent]);
        let text = page.text();
        let guest = r#"node="node1",namespace="n",name="a""#;
        let wanted = [
            format!("kubevirt_vmi_cpu_usage_seconds_total{{{guest}}} 1.5"),
            format!("kubevirt_vmi_memory_resident_bytes{{{guest}}} 2048"),
            format!("kubevirt_vmi_memory_pgmajfault_total{{{guest}}} 3"),
            format!("kubevirt_vmi_node_cpu_affinity{{{guest}}} 4"),
            format!(r#"kubevirt_vmi_vcpu_seconds_total{{{guest},id="0",state="running"}} 0.25"#),
            format!(r#"kubevirt_vmi_vcpu_wait_seconds_total{{{guest},id="0"}} 0"#),
            format!(
                r#"kubevirt_vmi_network_receive_bytes_total{{{guest},interface="default",network="default"}} 10"#
            ),
            format!(
                r#"kubevirt_vmi_network_transmit_packets_dropped_total{{{guest},interface="default",network="default"}} 1"#
            ),
            format!(
                r#"kubevirt_vmi_network_traffic_bytes_total{{{guest},interface="default",type="rx"}} 10"#
            ),
            format!(r#"kubevirt_vmi_storage_iops_read_total{{{guest},drive="root"}} 4"#),
            format!(r#"kubevirt_vmi_storage_flush_times_seconds_total{{{guest},drive="root"}} 0.005"#),
            format!(r#"kubevirt_vmi_storage_write_traffic_bytes_total{{{guest},drive="sdb"}} 6"#),
            format!(
                r#"kubevirt_vmi_filesystem_capacity_bytes{{{guest},disk_name="vda1",mount_point="/",file_system_type="ext4"}} 9"#
            ),
            format!(
                r#"kubevirt_vmi_filesystem_used_bytes{{{guest},disk_name="vda1",mount_point="/",file_system_type="ext4"}} 5"#
            ),
        ];
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let sorted: BTreeSet<&str> = samples.iter().copied().collect();
        assert_eq!(sorted, wanted.iter().map(String::as_str).collect::<BTreeSet<_>>());
        assert_eq!(samples.len(), wanted.len(), "no sample is there twice");
    }

    #[test]
    fn interfaces_are_those_of_the_objects() {
        let instance = Instance {
            namespace: "n".to_owned(),
            name: "a".to_owned(),
            spec: serde_json::from_value(json!({
                "domain": {"devices": {"interfaces": [
                    {"name": "default", "masquerade": {}}, {"name": "lan", "bridge": {}},
                    {"name": "fast", "binding": {"name": "passt"}}, {"name": "none"},
                ]}},
                "networks": [
                    {"name": "default", "pod": {}}, {"name": "lan", "multus": {"networkName": "n/lan"}},
                    {"name": "fast", "multus": {"networkName": "fast"}}, {"name": "none", "pod": {}},
                ],
            }))
            .unwrap(),
            status: json!({"interfaces": [
                {"name": "default", "ipAddress": "10.0.0.7"}, {"name": "default", "ipAddress": "10.0.0.7"},
                {"name": "lan", "ipAddress": ""}, {"name": "lan"}, {"name": "lan", "ipAddress": "fd00::7"},
            ]}),
            ..Instance::default()
        };
        let mut page = Page::default();
        write_interfaces(&mut page, "node1", &[Arc::new(instance)]);
        let text = page.text();
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let address = |network: &str, address: &str| {
            let guest = r#"node="node1",namespace="n",name="a""#;
            let of = format!(r#"network_name="{network}",address="{address}",type="InternalIP""#);
            format!("kubevirt_vmi_status_addresses{{{guest},{of}}} 1")
        };
        let card = |card: &str, kind: &str, network: &str, binding: &str| {
            let of = format!(
                r#"vnic_name="{card}",binding_type="{kind}",network="{network}",binding_name="{binding}""#
            );
            format!(r#"kubevirt_vmi_vnic_info{{name="a",namespace="n",{of}}} 1"#)
        };
        let wanted = [
            address("default", "10.0.0.7"),
            address("lan", "fd00::7"),
            card("default", "core", "pod networking", "masquerade"),
            card("lan", "core", "n/lan", "bridge"),
            card("fast", "plugin", "fast", "passt"),
        ];
        assert_eq!(samples, wanted);
    }

    #[test]
    fn streams_are_counted_by_kind() {
        let key = || Key::new("n", "a");
        let counts = Counts {
            open: [((key(), "console"), 1), ((key(), "portforward"), 2), ((key(), "usbredir"), 4)].into(),
            last: [(key(), 1_700_000_000)].into(),
        };
        let mut page = Page::default();
        write_agent(&mut page, true, &counts);
        let text = page.text();
        for line in [
            "kubevirt_virt_handler_ready_status 1",
            r#"kubevirt_console_active_connections{namespace="n",vmi="a"} 1"#,
            r#"kubevirt_portforward_active_tunnels{namespace="n",vmi="a"} 2"#,
            r#"kubevirt_usbredir_active_connections{namespace="n",vmi="a"} 4"#,
            r#"kubevirt_vmi_last_api_connection_timestamp_seconds{namespace="n",vmi="a"} 1700000000"#,
        ] {
            assert!(text.lines().any(|one| one == line), "{line}\n{text}");
        }
        assert!(!text.contains("kubevirt_vnc_active_connections{"), "{text}");
    }
}
