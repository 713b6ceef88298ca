//! Recording rules and alerts, by upstream's objects that hold them.
//!
//! Upstream's expressions look for pods of its own names; these have the same names and look for ours. Every alert has a page
//! in docs/runbooks. Not here: the objects ([`super`]).

/// The rules of one component, which upstream keeps in an object of their own.
#[derive(Debug)]
pub(super) struct Rules {
    /// Name of the object.
    pub(super) object: &'static str,
    /// Name of the component in the labels of its alerts.
    pub(super) component: &'static str,
    /// Recording rules.
    pub(super) records: &'static [Record],
    /// Alerts.
    pub(super) alerts: &'static [Alert],
}

/// A recording rule. In expressions, `NS` stands for the namespace.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) name: &'static str,
    pub(super) expression: &'static str,
    /// A label of its series, `reason`.
    pub(super) reason: Option<&'static str>,
}

/// The subject of an alert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    Platform,
    /// A guest: its series have the labels `name` and `namespace`.
    Guest,
    /// A client of the API.
    Client,
}

/// An alert.
#[derive(Clone, Copy, Debug)]
pub(super) struct Alert {
    pub(super) name: &'static str,
    pub(super) expression: &'static str,
    /// How long the expression must hold.
    pub(super) duration: &'static str,
    pub(super) severity: &'static str,
    pub(super) summary: &'static str,
    /// Template of a text with the labels of the series.
    pub(super) description: Option<&'static str>,
    pub(super) subject: Subject,
    /// Whether upstream has the alert, and a page about it.
    pub(super) upstream: bool,
    /// Its impact on the platform's health; `None`: that of its subject and severity.
    pub(super) impact: Option<&'static str>,
}

const fn record(name: &'static str, expression: &'static str) -> Record {
    Record { name, expression, reason: None }
}

const fn alert(
    name: &'static str,
    expression: &'static str,
    duration: &'static str,
    severity: &'static str,
    summary: &'static str,
) -> Alert {
    Alert {
        name,
        expression,
        duration,
        severity,
        summary,
        description: None,
        subject: Subject::Platform,
        upstream: true,
        impact: None,
    }
}

/// An alert about a guest.
const fn of_guest(alert: Alert, description: &'static str) -> Alert {
    Alert { subject: Subject::Guest, description: Some(description), ..alert }
}

/// An alert about a client of the API.
const fn of_client(alert: Alert, description: &'static str) -> Alert {
    Alert { subject: Subject::Client, description: Some(description), ..alert }
}

/// An alert that upstream does not have.
const fn own(alert: Alert) -> Alert {
    Alert { upstream: false, ..alert }
}

/// An alert with an impact of its own.
const fn of_impact(impact: &'static str, alert: Alert) -> Alert {
    Alert { impact: Some(impact), ..alert }
}

/// All rules.
pub(super) const ALL: [Rules; 6] = [
    Rules {
        object: "prometheus-kubevirt-rules",
        component: "kubevirt",
        records: &KUBEVIRT_RECORDS,
        alerts: &KUBEVIRT_ALERTS,
    },
    Rules {
        object: "prometheus-cdi-rules",
        component: "containerized-data-importer",
        records: &CDI_RECORDS,
        alerts: &CDI_ALERTS,
    },
    Rules {
        object: "prometheus-hpp-rules",
        component: "hostpath-provisioner-operator",
        records: &HPP_RECORDS,
        alerts: &HPP_ALERTS,
    },
    Rules {
        object: "prometheus-rules-cluster-network-addons-operator",
        component: "cluster-network-addons-operator",
        records: &NETWORK_RECORDS,
        alerts: &NETWORK_ALERTS,
    },
    Rules {
        object: "kubevirt-hyperconverged-prometheus-rule",
        component: "hyperconverged-cluster-operator",
        records: &HCO_RECORDS,
        alerts: &HCO_ALERTS,
    },
    Rules {
        object: "prometheus-k8s-rules-cnv",
        component: "ssp-operator",
        records: &SSP_RECORDS,
        alerts: &SSP_ALERTS,
    },
];

/// Records of VMs.
const KUBEVIRT_RECORDS: [Record; 42] = [
    record("kubevirt_virt_api_up", "sum(up{namespace='NS', pod=~'ferrovirt-operator-.*'}) or vector(0)"),
    record(
        "cluster:kubevirt_virt_api_up:sum",
        "sum(up{namespace='NS', pod=~'ferrovirt-operator-.*'}) or vector(0)",
    ),
    record(
        "kubevirt_virt_controller_up",
        "sum(up{namespace='NS', pod=~'ferrovirt-operator-.*'}) or vector(0)",
    ),
    record(
        "cluster:kubevirt_virt_controller_up:sum",
        "sum(up{namespace='NS', pod=~'ferrovirt-operator-.*'}) or vector(0)",
    ),
    record("kubevirt_virt_operator_up", "sum(up{namespace='NS', pod=~'ferrovirt-operator-.*'}) or vector(0)"),
    record(
        "cluster:kubevirt_virt_operator_up:sum",
        "sum(up{namespace='NS', pod=~'ferrovirt-operator-.*'}) or vector(0)",
    ),
    record("kubevirt_virt_handler_up", "sum(up{namespace='NS', pod=~'virt-handler-.*'}) or vector(0)"),
    record(
        "cluster:kubevirt_virt_handler_up:sum",
        "sum(up{namespace='NS', pod=~'virt-handler-.*'}) or vector(0)",
    ),
    record(
        "kubevirt_nodes_with_kvm",
        "count(kube_node_status_allocatable{resource='devices_kubevirt_io_kvm'} != 0) or vector(0)",
    ),
    record(
        "kubevirt_allocatable_nodes",
        "count(count(kube_node_status_allocatable) by (node)) - cluster:kubevirt_non_schedulable_nodes:sum",
    ),
    record(
        "cluster:kubevirt_non_schedulable_nodes:sum",
        "sum(count by (node) (kube_node_role{role=~'arbiter'})) or vector(0)",
    ),
    record(
        "cluster:kubevirt_nodes_allocatable:count",
        "count(count(kube_node_status_allocatable) by (node)) - cluster:kubevirt_non_schedulable_nodes:sum",
    ),
    record(
        "cluster:kubevirt_nodes_with_kvm:count",
        "count(kube_node_status_allocatable{resource='devices_kubevirt_io_kvm'} != 0) or vector(0)",
    ),
    record(
        "cluster:kubevirt_virt_api_pods_running:count",
        "count(kube_pod_status_phase{namespace='NS', pod=~'ferrovirt-operator-.*', phase='Running'} == 1) or vector(0)",
    ),
    record(
        "cluster:kubevirt_virt_api_ready:sum",
        "sum(kubevirt_virt_api_ready_status{namespace='NS'}) or vector(0)",
    ),
    record(
        "cluster:kubevirt_virt_controller_pods_running:count",
        "count(kube_pod_status_phase{namespace='NS', pod=~'ferrovirt-operator-.*', phase='Running'} == 1) or vector(0)",
    ),
    record(
        "cluster:kubevirt_virt_controller_ready:sum",
        "sum(kubevirt_virt_controller_ready_status{namespace='NS'}) or vector(0)",
    ),
    record(
        "cluster:kubevirt_virt_operator_pods_running:count",
        "count(kube_pod_status_phase{namespace='NS', pod=~'ferrovirt-operator-.*', phase='Running'} == 1) or vector(0)",
    ),
    record(
        "cluster:kubevirt_virt_operator_ready:sum",
        "sum(kubevirt_virt_operator_ready_status{namespace='NS'}) or vector(0)",
    ),
    record(
        "cluster:kubevirt_virt_handler_pods_running:count",
        "count(kube_pod_status_phase{namespace='NS', pod=~'virt-handler-.*', phase='Running'} == 1) or vector(0)",
    ),
    record(
        "cluster:kubevirt_virt_handler_ready:sum",
        "sum(kubevirt_virt_handler_ready_status{namespace='NS'}) or vector(0)",
    ),
    record(
        "kubevirt_virt_controller_ready",
        "sum(kubevirt_virt_controller_ready_status{namespace='NS'}) or vector(0)",
    ),
    record(
        "cluster:kubevirt_virt_controller_leading:sum",
        "sum(kubevirt_virt_controller_leading_status{namespace='NS'}) or vector(0)",
    ),
    record(
        "kubevirt_virt_operator_ready",
        "sum(kubevirt_virt_operator_ready_status{namespace='NS'}) or vector(0)",
    ),
    record(
        "cluster:kubevirt_virt_operator_leading:sum",
        "sum(kubevirt_virt_operator_leading_status{namespace='NS'}) or vector(0)",
    ),
    record(
        "kubevirt_virt_operator_leading",
        "sum(kubevirt_virt_operator_leading_status{namespace='NS'}) or vector(0)",
    ),
    record(
        "kubevirt_api_request_deprecated_total",
        "group by (group, version, resource, subresource) (apiserver_requested_deprecated_apis{group='kubevirt.io'}) * on (group, version, resource, subresource) group_right() sum by (group, version, resource, subresource, verb) (apiserver_request_total)",
    ),
    record(
        "cluster:kubevirt_api_request_deprecated_total:sum",
        "group by (group, version, resource, subresource) (apiserver_requested_deprecated_apis{group='kubevirt.io'}) * on (group, version, resource, subresource) group_right() sum by (group, version, resource, subresource, verb) (apiserver_request_total)",
    ),
    record(
        "kubevirt_vm_created_total",
        "sum by (namespace) (kubevirt_vm_created_by_pod_total{namespace!=''})",
    ),
    record(
        "kubevirt_vmi_memory_used_bytes",
        "kubevirt_vmi_memory_available_bytes - kubevirt_vmi_memory_usable_bytes",
    ),
    record(
        "vmi:kubevirt_vmi_memory_used_bytes:sum",
        "sum by (name, namespace) (kubevirt_vmi_memory_available_bytes - kubevirt_vmi_memory_usable_bytes)",
    ),
    record(
        "vmi:kubevirt_vmi_memory_available_bytes:sum",
        "sum by (name, namespace) (kubevirt_vmi_memory_available_bytes)",
    ),
    record(
        "vmi:kubevirt_vmi_memory_headroom_ratio:sum",
        "sum by (name, namespace) (kubevirt_vmi_memory_usable_bytes) / sum by (name, namespace) (kubevirt_vmi_memory_available_bytes)",
    ),
    record(
        "vmi:kubevirt_vmi_pgmajfaults:rate5m",
        "sum by (name, namespace) (rate(kubevirt_vmi_memory_pgmajfault_total[5m]))",
    ),
    record(
        "vmi:kubevirt_vmi_swap_traffic_bytes:rate5m",
        "sum by (name, namespace) (rate(kubevirt_vmi_memory_swap_in_traffic_bytes[5m])) + sum by (name, namespace) (rate(kubevirt_vmi_memory_swap_out_traffic_bytes[5m]))",
    ),
    record(
        "vmi:kubevirt_vmi_pgmajfaults:rate30m",
        "sum by (name, namespace) (rate(kubevirt_vmi_memory_pgmajfault_total[30m]))",
    ),
    record(
        "vmi:kubevirt_vmi_swap_traffic_bytes:rate30m",
        "sum by (name, namespace) (rate(kubevirt_vmi_memory_swap_in_traffic_bytes[30m])) + sum by (name, namespace) (rate(kubevirt_vmi_memory_swap_out_traffic_bytes[30m]))",
    ),
    record("vmi:kubevirt_vmi_vcpu:count", "count by (name, namespace) (kubevirt_vmi_vcpu_seconds_total)"),
    record(
        "kubevirt_vm_container_memory_request_margin_based_on_rss_bytes",
        "sum by (pod, container, namespace) (kube_pod_container_resource_requests{pod=~'virt-launcher-.*', container='compute', resource='memory'} - on (pod, container, namespace) container_memory_rss{pod=~'virt-launcher-.*', container='compute'})",
    ),
    record(
        "kubevirt_vm_container_memory_request_margin_based_on_working_set_bytes",
        "sum by (pod, container, namespace) (kube_pod_container_resource_requests{pod=~'virt-launcher-.*', container='compute', resource='memory'} - on (pod, container, namespace) container_memory_working_set_bytes{pod=~'virt-launcher-.*', container='compute'})",
    ),
    Record {
        name: "kubevirt_memory_delta_from_requested_bytes",
        expression: "topk by (container) (1, max by (container, namespace, node) (container_memory_working_set_bytes{namespace='NS', container=~'operator|virt-handler'} - on (pod, container) group_left(node) kube_pod_container_resource_requests{namespace='NS', container=~'operator|virt-handler', resource='memory'}))",
        reason: Some("memory_working_set_delta_from_request"),
    },
    Record {
        name: "kubevirt_memory_delta_from_requested_bytes",
        expression: "topk by (container) (1, max by (container, namespace, node) (container_memory_rss{namespace='NS', container=~'operator|virt-handler'} - on (pod, container) group_left(node) kube_pod_container_resource_requests{namespace='NS', container=~'operator|virt-handler', resource='memory'}))",
        reason: Some("memory_rss_delta_from_request"),
    },
];

/// Alerts of VMs.
const KUBEVIRT_ALERTS: [Alert; 26] = [
    alert(
        "VirtAPIDown",
        "kubevirt_virt_api_up == 0",
        "10m",
        "critical",
        "No replica of the operator serves the API.",
    ),
    alert(
        "VirtControllerDown",
        "kubevirt_virt_controller_up == 0",
        "10m",
        "critical",
        "No replica of the operator runs its controllers.",
    ),
    alert(
        "VirtOperatorDown",
        "kubevirt_virt_operator_up == 0",
        "10m",
        "critical",
        "No replica of the operator runs.",
    ),
    alert("VirtHandlerDown", "kubevirt_virt_handler_up == 0", "10m", "critical", "No node agent runs."),
    alert(
        "VirtHandlerDaemonSetRolloutFailing",
        "(kube_daemonset_status_number_ready{namespace='NS', daemonset='virt-handler'} - kube_daemonset_status_desired_number_scheduled{namespace='NS', daemonset='virt-handler'}) != 0",
        "15m",
        "warning",
        "The node agent is not ready on every node.",
    ),
    alert(
        "LowKVMNodesCount",
        "kubevirt_allocatable_nodes > 1 and kubevirt_nodes_with_kvm < 2",
        "5m",
        "warning",
        "Fewer than two nodes have KVM.",
    ),
    alert(
        "NoReadyVirtController",
        "kubevirt_virt_controller_ready == 0",
        "10m",
        "critical",
        "No replica of the operator is ready to run its controllers.",
    ),
    alert(
        "OrphanedVirtualMachineInstances",
        "((max by (node) (kube_pod_status_ready{namespace='NS', condition='true', pod=~'virt-handler-.*'} * on (pod, namespace) group_left(node) max by (namespace, pod, node) (kube_pod_info{namespace='NS', pod=~'virt-handler-.*', node!=''})) == 1) or (count by (node) (kube_pod_info{pod=~'virt-launcher-.*', node!=''}) * 0)) == 0",
        "10m",
        "warning",
        "VMs run on a node without a ready agent.",
    ),
    alert(
        "OutdatedVirtualMachineInstanceWorkloads",
        "kubevirt_vmi_number_of_outdated != 0",
        "1440m",
        "warning",
        "VMs run by launchers of another release a day after an upgrade.",
    ),
    alert(
        "LowVirtAPICount",
        "kubevirt_allocatable_nodes > 1 and kubevirt_virt_api_up < 2",
        "60m",
        "warning",
        "One replica of the operator serves the API, in a cluster with several nodes.",
    ),
    alert(
        "LowVirtControllersCount",
        "kubevirt_allocatable_nodes > 1 and kubevirt_virt_controller_ready < 2",
        "10m",
        "warning",
        "Fewer than two replicas of the operator are ready to run its controllers, in a cluster with several nodes.",
    ),
    alert(
        "LowReadyVirtControllersCount",
        "kubevirt_virt_controller_ready < cluster:kubevirt_virt_controller_pods_running:count",
        "10m",
        "warning",
        "A replica of the operator runs and is not ready to run its controllers.",
    ),
    alert(
        "LowVirtOperatorCount",
        "kubevirt_allocatable_nodes > 1 and kubevirt_virt_operator_up < 2",
        "60m",
        "warning",
        "One replica of the operator runs, in a cluster with several nodes.",
    ),
    alert(
        "LowReadyVirtOperatorsCount",
        "kubevirt_virt_operator_ready < cluster:kubevirt_virt_operator_pods_running:count",
        "10m",
        "warning",
        "A replica of the operator runs and is not ready.",
    ),
    alert(
        "NoReadyVirtOperator",
        "kubevirt_virt_operator_ready == 0",
        "10m",
        "critical",
        "No replica of the operator is ready.",
    ),
    alert(
        "NoLeadingVirtOperator",
        "kubevirt_virt_operator_leading == 0",
        "10m",
        "critical",
        "No replica of the operator leads.",
    ),
    alert(
        "KubeVirtNoAvailableNodesToRunVMs",
        "(kubevirt_nodes_with_kvm == 0 and (sum(kubevirt_configuration_emulation_enabled) or on () vector(0)) == 0) or cluster:kubevirt_virt_handler_ready:sum == 0 or count(kube_node_spec_unschedulable) == sum(kube_node_spec_unschedulable)",
        "5m",
        "warning",
        "No node can run VMs.",
    ),
    alert(
        "VirtLauncherPodsStuckFailed",
        "sum by (namespace) (kube_pod_status_phase{phase='Failed', pod=~'virt-launcher-.*'}) >= 200",
        "10m",
        "critical",
        "At least 200 launcher pods of a namespace have failed and are not deleted.",
    ),
    of_guest(
        alert(
            "VMCannotBeEvicted",
            "kubevirt_vmi_non_evictable * on (name, namespace) group_left() topk by (name, namespace) (1, kubevirt_vmi_info{phase='running'}) == 1",
            "1m",
            "warning",
            "A VM that is to be migrated when its node is drained cannot be migrated.",
        ),
        "VirtualMachine {{ $labels.name }} in namespace {{ $labels.namespace }} on node {{ $labels.node }} has the eviction strategy LiveMigrate and cannot be migrated.",
    ),
    of_guest(
        alert(
            "VirtualMachineStuckInUnhealthyState",
            "sum by (name, namespace, status) (kubevirt_vm_info{status=~'provisioning|starting|terminating'} == 1 or kubevirt_vm_info{status_group='error'} == 1) unless on (name, namespace) kubevirt_vmi_info",
            "10m",
            "warning",
            "A VM without an instance neither starts nor ends.",
        ),
        "VirtualMachine {{ $labels.name }} in namespace {{ $labels.namespace }} has been {{ $labels.status }} for more than 10 minutes.",
    ),
    of_guest(
        alert(
            "VirtualMachineStuckOnNode",
            "sum by (name, namespace, status, node) ((kubevirt_vm_info{status=~'starting|stopping|terminating'} == 1 or (kubevirt_vm_info{status_group='error'} == 1 and on (name, namespace) kubevirt_vmi_info{phase=~'scheduled|running'})) * on (name, namespace) group_left(node) topk by (name, namespace) (1, kubevirt_vmi_info{phase=~'scheduled|running'}))",
            "5m",
            "warning",
            "A VM on a node neither starts nor ends.",
        ),
        "VirtualMachine {{ $labels.name }} in namespace {{ $labels.namespace }} on node {{ $labels.node }} has been {{ $labels.status }} for more than 5 minutes.",
    ),
    of_guest(
        alert(
            "GuestFilesystemAlmostOutOfSpace",
            "100 * kubevirt_vmi_filesystem_used_bytes{namespace!='', file_system_type!~'CDFS|iso9660|udf|squashfs|cramfs|tmpfs|devtmpfs|proc|sysfs|selinuxfs|securityfs|pstore|debugfs|tracefs|configfs|binfmt_misc|bpf|devpts|mqueue|nsfs|rpc_pipefs|ramfs|rootfs|overlay|cgroup.*|fuse.*', mount_point!='System Reserved'} / kubevirt_vmi_filesystem_capacity_bytes{namespace!='', file_system_type!~'CDFS|iso9660|udf|squashfs|cramfs|tmpfs|devtmpfs|proc|sysfs|selinuxfs|securityfs|pstore|debugfs|tracefs|configfs|binfmt_misc|bpf|devpts|mqueue|nsfs|rpc_pipefs|ramfs|rootfs|overlay|cgroup.*|fuse.*', mount_point!='System Reserved'} >= 85 < 95",
            "10m",
            "warning",
            "A filesystem of a guest is more than 85 % full.",
        ),
        "Filesystem {{ $labels.disk_name }} ({{ $labels.mount_point }}) of VirtualMachine {{ $labels.name }} in namespace {{ $labels.namespace }} is {{ $value }} % full.",
    ),
    of_guest(
        alert(
            "GuestFilesystemAlmostOutOfSpace",
            "100 * kubevirt_vmi_filesystem_used_bytes{namespace!='', file_system_type!~'CDFS|iso9660|udf|squashfs|cramfs|tmpfs|devtmpfs|proc|sysfs|selinuxfs|securityfs|pstore|debugfs|tracefs|configfs|binfmt_misc|bpf|devpts|mqueue|nsfs|rpc_pipefs|ramfs|rootfs|overlay|cgroup.*|fuse.*', mount_point!='System Reserved'} / kubevirt_vmi_filesystem_capacity_bytes{namespace!='', file_system_type!~'CDFS|iso9660|udf|squashfs|cramfs|tmpfs|devtmpfs|proc|sysfs|selinuxfs|securityfs|pstore|debugfs|tracefs|configfs|binfmt_misc|bpf|devpts|mqueue|nsfs|rpc_pipefs|ramfs|rootfs|overlay|cgroup.*|fuse.*', mount_point!='System Reserved'} >= 95",
            "0m",
            "critical",
            "A filesystem of a guest is more than 95 % full.",
        ),
        "Filesystem {{ $labels.disk_name }} ({{ $labels.mount_point }}) of VirtualMachine {{ $labels.name }} in namespace {{ $labels.namespace }} is {{ $value }} % full.",
    ),
    of_guest(
        alert(
            "KubeVirtVMGuestMemoryPressure",
            "(vmi:kubevirt_vmi_memory_headroom_ratio:sum < 0.05) and (vmi:kubevirt_vmi_pgmajfaults:rate5m > 5 or vmi:kubevirt_vmi_swap_traffic_bytes:rate5m > 1048576) and (vmi:kubevirt_vmi_memory_available_bytes:sum > 0) and on (name, namespace) kubevirt_vmi_info{phase='running'}",
            "5m",
            "warning",
            "A guest has little memory left, and reads what it has swapped out.",
        ),
        "VirtualMachine {{ $labels.name }} in namespace {{ $labels.namespace }} has less than 5 % of its memory left, with major page faults or swap traffic.",
    ),
    of_guest(
        alert(
            "KubeVirtVMGuestMemoryAvailableLow",
            "(vmi:kubevirt_vmi_memory_headroom_ratio:sum < 0.03) and (vmi:kubevirt_vmi_swap_traffic_bytes:rate30m < 2048) and (vmi:kubevirt_vmi_pgmajfaults:rate30m < 1) and (vmi:kubevirt_vmi_memory_available_bytes:sum > 0) and on (name, namespace) kubevirt_vmi_info{phase='running'}",
            "30m",
            "info",
            "A guest has little memory left, and no swap that it uses.",
        ),
        "VirtualMachine {{ $labels.name }} in namespace {{ $labels.namespace }} has had less than 3 % of its memory left for 30 minutes, without swap traffic.",
    ),
    of_client(
        alert(
            "KubeVirtDeprecatedAPIRequested",
            "sum by (resource, group, version) (round(increase(kubevirt_api_request_deprecated_total{verb!~'LIST|WATCH'}[10m])) > 0 and kubevirt_api_request_deprecated_total{verb!~'LIST|WATCH'})",
            "0m",
            "info",
            "A client uses a deprecated version of the API.",
        ),
        "Clients sent requests to {{ $labels.resource }}.{{ $labels.group }}/{{ $labels.version }}, which is deprecated.",
    ),
];

/// Records of imports, uploads and clones.
const CDI_RECORDS: [Record; 8] = [
    record("kubevirt_cdi_operator_up", "sum(up{namespace='NS', pod=~'ferrovirt-operator-.*'}) or vector(0)"),
    record(
        "cluster:kubevirt_cdi_operator_up:sum",
        "sum(up{namespace='NS', pod=~'ferrovirt-operator-.*'}) or vector(0)",
    ),
    record(
        "kubevirt_cdi_import_pods_high_restart",
        "count(kube_pod_container_status_restarts_total{pod=~'importer-.*', container='importer'} > 3) or on() vector(0)",
    ),
    record(
        "cluster:kubevirt_cdi_import_pods_high_restart:count",
        "count(kube_pod_container_status_restarts_total{pod=~'importer-.*', container='importer'} > 3) or on() vector(0)",
    ),
    record(
        "kubevirt_cdi_upload_pods_high_restart",
        "count(kube_pod_container_status_restarts_total{pod=~'cdi-upload-.*', container='cdi-upload-server'} > 3) or on() vector(0)",
    ),
    record(
        "cluster:kubevirt_cdi_upload_pods_high_restart:count",
        "count(kube_pod_container_status_restarts_total{pod=~'cdi-upload-.*', container='cdi-upload-server'} > 3) or on() vector(0)",
    ),
    record(
        "kubevirt_cdi_clone_pods_high_restart",
        "count(kube_pod_container_status_restarts_total{pod=~'.*-source-pod', container='cdi-clone-source'} > 3) or on() vector(0)",
    ),
    record(
        "cluster:kubevirt_cdi_clone_pods_high_restart:count",
        "count(kube_pod_container_status_restarts_total{pod=~'.*-source-pod', container='cdi-clone-source'} > 3) or on() vector(0)",
    ),
];

/// Alerts of imports, uploads and clones.
const CDI_ALERTS: [Alert; 8] = [
    alert(
        "CDIOperatorDown",
        "kubevirt_cdi_operator_up == 0",
        "5m",
        "warning",
        "No replica of the operator imports data.",
    ),
    alert(
        "CDINotReady",
        "max(kubevirt_cdi_cr_ready{namespace='NS'}) == 0",
        "5m",
        "critical",
        "CDI is not available.",
    ),
    alert(
        "CDIDataVolumeUnusualRestartCount",
        "kubevirt_cdi_import_pods_high_restart > 0 or kubevirt_cdi_upload_pods_high_restart > 0 or kubevirt_cdi_clone_pods_high_restart > 0",
        "5m",
        "warning",
        "Pods that fill volumes fail again and again.",
    ),
    alert(
        "CDIStorageProfilesIncomplete",
        "sum by (storageclass, provisioner) (kubevirt_cdi_storageprofile_info{complete='false'}) > 0",
        "5m",
        "info",
        "Nothing is known about the provisioner of a storage class.",
    ),
    alert(
        "CDIDataImportCronOutdated",
        "sum by (ns, cron_name) (kubevirt_cdi_dataimportcron_outdated{pending='false'}) > 0",
        "15m",
        "info",
        "The latest version of a source is not imported.",
    ),
    alert(
        "CDINoDefaultStorageClass",
        "sum(kubevirt_cdi_storageprofile_info{default='true'} or on() vector(0)) + sum(kubevirt_cdi_storageprofile_info{virtdefault='true'} or on() vector(0)) == 0 and max(kubevirt_cdi_datavolume_pending) > 0",
        "5m",
        "warning",
        "DataVolumes wait for a default storage class.",
    ),
    alert(
        "CDIMultipleDefaultVirtStorageClasses",
        "sum(kubevirt_cdi_storageprofile_info{virtdefault='true'} or on() vector(0)) > 1",
        "5m",
        "warning",
        "Several storage classes are the default for virtual machines.",
    ),
    alert(
        "CDIDefaultStorageClassDegraded",
        "sum(kubevirt_cdi_storageprofile_info{default='true', degraded='true'} or kubevirt_cdi_storageprofile_info{virtdefault='true', degraded='true'}) > 0 and sum(kubevirt_cdi_storageprofile_info{default='true', degraded='false'} or kubevirt_cdi_storageprofile_info{virtdefault='true', degraded='false'} or on() vector(0)) == 0",
        "5m",
        "warning",
        "The default storage class cannot clone volumes or share them between nodes.",
    ),
];

/// Records of the hostpath driver.
const HPP_RECORDS: [Record; 2] = [
    record(
        "kubevirt_hpp_operator_up",
        "sum(up{namespace='NS', pod=~'hostpath-provisioner-csi-.*'}) or vector(0)",
    ),
    record(
        "cluster:kubevirt_hpp_operator_up:sum",
        "sum(up{namespace='NS', pod=~'hostpath-provisioner-csi-.*'}) or vector(0)",
    ),
];

/// Alerts of the hostpath driver.
const HPP_ALERTS: [Alert; 10] = [
    alert(
        "HPPOperatorDown",
        "kubevirt_hpp_operator_up == 0 and on() kubevirt_hpp_cr_ready >= 0",
        "5m",
        "warning",
        "No hostpath driver runs.",
    ),
    of_impact(
        "critical",
        alert(
            "HPPNotReady",
            "kubevirt_hpp_cr_ready == 0",
            "5m",
            "warning",
            "HostPathProvisioner is not available.",
        ),
    ),
    own(alert(
        "HPPPoolNearlyFull",
        "kubevirt_hpp_pool_free_bytes < 0.1 * kubevirt_hpp_pool_size_bytes",
        "5m",
        "warning",
        "Less than a tenth of a storage pool is free.",
    )),
    own(alert(
        "HPPPoolMostlyReserved",
        "kubevirt_hpp_pool_promised_bytes > 0.9 * kubevirt_hpp_pool_limit_bytes",
        "5m",
        "warning",
        "More than 90 % of a storage pool is reserved.",
    )),
    own(alert(
        "HPPPoolReadOnly",
        "kubevirt_hpp_pool_read_only == 1",
        "1m",
        "warning",
        "A storage pool accepts no writes.",
    )),
    own(alert(
        "HPPPoolNotEnforced",
        "kubevirt_hpp_pool_enforced_info{by='none'} == 1",
        "15m",
        "info",
        "The capacity of volumes is not enforced in a storage pool.",
    )),
    own(alert(
        "HPPLoopDeviceBuffered",
        "kubevirt_hpp_volume_loop_info{direct='false'} == 1",
        "15m",
        "info",
        "The loop device of a volume uses the page cache.",
    )),
    alert(
        "HPPSharingPoolPathWithOS",
        "kubevirt_hpp_pool_path_shared_with_os == 1",
        "1m",
        "warning",
        "A storage pool shares the root filesystem of its node.",
    ),
    own(alert(
        "HPPPoolNotReady",
        "kubevirt_hpp_pool_ready == 0",
        "5m",
        "warning",
        "The filesystem of a storage pool is not mounted.",
    )),
    own(alert(
        "HPPVolumeFragmented",
        "kubevirt_hpp_volume_extents > 32000",
        "1h",
        "info",
        "A snapshot of a volume halts its guest for more than 1.5 s.",
    )),
];

/// Records of network components.
const NETWORK_RECORDS: [Record; 7] = [
    record(
        "kubevirt_cnao_kubemacpool_manager_up",
        "sum(up{namespace='NS', pod=~'kubemacpool-mac-controller-manager-.*'}) or vector(0)",
    ),
    record(
        "cluster:kubevirt_cnao_kubemacpool_manager_up:sum",
        "sum(up{namespace='NS', pod=~'kubemacpool-mac-controller-manager-.*'}) or vector(0)",
    ),
    record("kubevirt_cnao_operator_up", "sum(up{namespace='NS', pod=~'ferrovirt-operator-.*'}) or vector(0)"),
    record(
        "cluster:kubevirt_cnao_operator_up:sum",
        "sum(up{namespace='NS', pod=~'ferrovirt-operator-.*'}) or vector(0)",
    ),
    record(
        "kubevirt_cnao_cr_kubemacpool_aggregated",
        "sum(kubevirt_cnao_cr_kubemacpool_deployed{namespace='NS'} or vector(0))",
    ),
    record(
        "cluster:kubevirt_cnao_cr_kubemacpool_deployed:sum",
        "sum(kubevirt_cnao_cr_kubemacpool_deployed{namespace='NS'} or vector(0))",
    ),
    record("kubevirt_cnao_kubemacpool_duplicate_macs", "max(kubevirt_kmp_duplicate_macs{namespace='NS'})"),
];

/// Alerts of network components.
const NETWORK_ALERTS: [Alert; 5] = [
    alert(
        "CnaoDown",
        "kubevirt_cnao_operator_up == 0",
        "5m",
        "warning",
        "No replica of the operator deploys network components.",
    ),
    alert(
        "NetworkAddonsConfigNotReady",
        "sum(kubevirt_cnao_cr_ready{namespace='NS'} or vector(0)) == 0",
        "5m",
        "warning",
        "NetworkAddonsConfig is not available.",
    ),
    alert(
        "KubemacpoolDown",
        "kubevirt_cnao_cr_kubemacpool_aggregated > 0 and kubevirt_cnao_kubemacpool_manager_up == 0",
        "5m",
        "critical",
        "No replica of the MAC pool runs.",
    ),
    alert(
        "KubeMacPoolDuplicateMacsFound",
        "kubevirt_cnao_kubemacpool_duplicate_macs != 0",
        "5m",
        "warning",
        "NICs share a MAC address.",
    ),
    alert(
        "KubemacpoolMACCollisionDetected",
        "count(max by (mac) (kmp_mac_collisions) > 1) > 0",
        "30s",
        "warning",
        "Several running objects use a MAC address at once.",
    ),
];

/// Records of HyperConverged.
const HCO_RECORDS: [Record; 4] = [
    record(
        "kubevirt_hyperconverged_operator_health_status",
        "max(kubevirt_hco_system_health_status{namespace='NS'})",
    ),
    record(
        "cluster:kubevirt_hco_operator_health_status:count",
        "max(kubevirt_hco_system_health_status{namespace='NS'})",
    ),
    record(
        "cluster:vmi_request_cpu_cores:sum",
        "sum(kube_pod_container_resource_requests{resource='cpu'} and on (pod) kube_pod_status_phase{phase='Running'} * on (pod) group_left kube_pod_labels{label_kubevirt_io='virt-launcher'} > 0)",
    ),
    record("cnv_abnormal", "sum by (container, reason) (kubevirt_memory_delta_from_requested_bytes)"),
];

/// Alerts of HyperConverged.
const HCO_ALERTS: [Alert; 4] = [
    alert(
        "KubeVirtCRModified",
        "sum by (component_name) (increase(kubevirt_hco_out_of_band_modifications_total{namespace='NS'}[10m])) > 0",
        "0m",
        "warning",
        "A child object of HyperConverged was changed by others and restored.",
    ),
    alert(
        "UnsupportedHCOModification",
        "sum by (annotation_name) (kubevirt_hco_unsafe_modifications{namespace='NS'}) > 0",
        "0m",
        "info",
        "An annotation of HyperConverged patches a child object.",
    ),
    alert(
        "HCOInstallationIncomplete",
        "max(kubevirt_hco_hyperconverged_cr_exists{namespace='NS'}) == 0",
        "1h",
        "info",
        "The operator runs, and no HyperConverged object exists.",
    ),
    alert(
        "HCOOperatorConditionsUnhealthy",
        "kubevirt_hyperconverged_operator_health_status > 0",
        "10m",
        "warning",
        "HyperConverged reports a problem.",
    ),
];

/// Records of boot sources and storage classes.
const SSP_RECORDS: [Record; 1] =
    [record("cnv:vmi_status_running:count", "sum by (node) (kubevirt_vmi_phase_count{phase='running'})")];

/// Alerts of boot sources and storage classes.
const SSP_ALERTS: [Alert; 1] = [alert(
    "VMStorageClassWarning",
    "(count(kubevirt_ssp_vm_rbd_block_volume_without_rxbounce > 0) or vector(0)) > 0",
    "0m",
    "warning",
    "Disks of virtual machines on Ceph RBD are mapped without krbd:rxbounce.",
)];
