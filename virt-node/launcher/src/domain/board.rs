//! The board: names, processors, memory, firmware, features, clock.

use api::launch::{Accelerator, Clock, CpuModel, Efi, Firmware, HypervSwitch, Launch, System, Timer, Word};

use super::xml::Element;

const KIB: u64 = 1 << 10;

/// On or off in libvirt's spelling.
pub(super) fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

/// Yes or no in libvirt's spelling.
pub(super) fn yes_no(yes: bool) -> &'static str {
    if yes { "yes" } else { "no" }
}

/// Name and UUID, and the SMBIOS strings.
pub(super) fn identity(launch: &Launch) -> [Element; 3] {
    let smbios = &launch.smbios;
    let entry = |(name, value): (&str, Option<&str>)| {
        value.map(|value| Element::new("entry").with("name", name).text(value))
    };
    let System { manufacturer, product, version, sku, family } = &smbios.system;
    let system = [
        ("manufacturer", Some(manufacturer.as_deref().unwrap_or("KubeVirt"))),
        ("product", Some(product.as_deref().unwrap_or("None"))),
        ("version", version.as_deref()),
        ("sku", sku.as_deref()),
        ("family", Some(family.as_deref().unwrap_or("KubeVirt"))),
        ("uuid", Some(smbios.uuid.as_str())),
        ("serial", smbios.serial.as_deref()),
    ];
    let system = Element::new("system").child(system.into_iter().filter_map(entry));
    let chassis = &smbios.chassis;
    let chassis = [
        ("manufacturer", chassis.manufacturer.as_deref()),
        ("version", chassis.version.as_deref()),
        ("serial", chassis.serial.as_deref()),
        ("asset", chassis.asset.as_deref()),
        ("sku", chassis.sku.as_deref()),
    ];
    let chassis: Vec<Element> = chassis.into_iter().filter_map(entry).collect();
    let mut sysinfo = Element::new("sysinfo").with("type", "smbios").child(system);
    if !chassis.is_empty() {
        sysinfo = sysinfo.child(Element::new("chassis").child(chassis));
    }
    // Objects' names have no underscore: two guests never share a domain's name.
    let name = format!("{}_{}", launch.namespace, launch.name);
    [Element::new("name").text(name), Element::new("uuid").text(&smbios.uuid), sysinfo]
}

/// Processors, threads for disks, memory.
pub(super) fn processors_and_memory(launch: &Launch) -> Vec<Element> {
    let cpu = &launch.cpu;
    let per_socket = cpu.cores * cpu.threads;
    let most = cpu.max_sockets * per_socket;
    let topology = Element::new("topology")
        .with("sockets", cpu.max_sockets)
        .with("dies", 1)
        .with("cores", cpu.cores)
        .with("threads", cpu.threads);
    let mut model = match &cpu.model {
        CpuModel::HostModel => Element::new("cpu").with("mode", "host-model"),
        CpuModel::HostPassthrough => Element::new("cpu").with("mode", "host-passthrough"),
        CpuModel::Maximum => Element::new("cpu").with("mode", "maximum"),
        CpuModel::Named(name) => Element::new("cpu")
            .with("mode", "custom")
            .with("match", "exact")
            .with("check", "partial")
            .child(Element::new("model").with("fallback", "forbid").text(name)),
    };
    model = model.child(topology).child(cpu.features.iter().map(|feature| {
        Element::new("feature").with("policy", feature.policy.word()).with("name", &feature.name)
    }));
    let memory = launch.memory;
    let grows = memory.max_guest > memory.guest;
    let kib = |name: &'static str, bytes: u64| Element::new(name).with("unit", "KiB").text(bytes / KIB);
    let mut elements = vec![kib("memory", memory.guest)];
    if grows {
        // libvirt asks for a NUMA node to add memory to.
        let cell = Element::new("cell")
            .with("id", 0)
            .with("cpus", format!("0-{}", most - 1))
            .with("memory", memory.guest / KIB)
            .with("unit", "KiB");
        model = model.child(Element::new("numa").child(cell));
        elements.push(kib("maxMemory", memory.max_guest).with("slots", 1));
    }
    if let Some(size) = memory.huge_page {
        let page = Element::new("page").with("size", size / KIB).with("unit", "KiB");
        elements.push(Element::new("memoryBacking").child(Element::new("hugepages").child(page)));
    }
    let vcpu = Element::new("vcpu").with("placement", "static");
    let vcpu =
        if cpu.sockets < cpu.max_sockets { vcpu.with("current", cpu.sockets * per_socket) } else { vcpu };
    elements.push(vcpu.text(most));
    if launch.io_threads > 0 {
        elements.push(Element::new("iothreads").text(launch.io_threads));
    }
    elements.push(model);
    elements
}

/// Properties that libvirt is made to assume absent in QEMU, where they only make the start longer (domain XML's namespace
/// of QEMU).
///
/// A libvirt that knows of `unavailable-features` asks QEMU for each of the processor's properties, about 400, and QEMU
/// reads its monitor byte by byte: half of what a start costs. One that does not asks for all of the CPUID's words at
/// once, which hold every feature but those of MSRs. These are there with KVM alone, and are of interest only where the
/// features are named, by us or by libvirt.
pub(super) fn spared(launch: &Launch) -> Option<Element> {
    let by_words = match (launch.accelerator, &launch.cpu.model) {
        (Accelerator::Tcg, _) | (Accelerator::Kvm, CpuModel::HostPassthrough | CpuModel::Maximum) => true,
        (Accelerator::Kvm, CpuModel::HostModel | CpuModel::Named(_)) => false,
    };
    let without = Element::new("qemu:del").with("capability", "cpu-unavailable-features");
    by_words.then(|| Element::new("qemu:capabilities").child(without))
}

/// Machine type and firmware.
pub(super) fn firmware(launch: &Launch) -> Element {
    let kind = Element::new("type").with("arch", "x86_64").with("machine", &launch.machine).text("hvm");
    let mut os = Element::new("os").child(kind);
    match &launch.firmware {
        Firmware::Bios { serial } => {
            if *serial {
                os = os.child(Element::new("bios").with("useserial", "yes"));
            }
        }
        Firmware::Efi(Efi { code, template, variables, secure_boot }) => {
            let loader = Element::new("loader")
                .with("readonly", "yes")
                .with("secure", yes_no(*secure_boot))
                .with("type", "pflash")
                .text(code);
            os = os.child(loader).child(Element::new("nvram").with("template", template).text(variables));
        }
    }
    if let Some(kernel) = &launch.kernel {
        let text = |name: &'static str, text: &str| Element::new(name).text(text);
        os = os
            .child(text("kernel", &kernel.image))
            .child(kernel.initrd.as_ref().map(|initrd| text("initrd", initrd)))
            .child(kernel.arguments.as_ref().map(|arguments| text("cmdline", arguments)));
    }
    if launch.paused {
        os = os.child(Element::new("bootmenu").with("enable", "yes").with("timeout", 10_000));
    }
    os.child(Element::new("smbios").with("mode", "sysinfo"))
}

/// ACPI and what follows.
pub(super) fn features(launch: &Launch) -> Element {
    let features = &launch.features;
    let state = |name: &'static str, on: bool| Element::new(name).with("state", on_off(on));
    let mut all = Element::new("features");
    if features.acpi {
        all = all.child(Element::new("acpi"));
    }
    if features.apic {
        all = all.child(Element::new("apic").with_some("eoi", features.apic_eoi.map(on_off)));
    }
    if let Some(hyperv) = &features.hyperv {
        let switches = hyperv.switches.iter().map(|(switch, on)| {
            let element = state(switch.word(), *on);
            let direct = *switch == HypervSwitch::Stimer && hyperv.direct_timers;
            if direct { element.child(state("direct", true)) } else { element }
        });
        let spinlocks = hyperv.spinlocks.map(|retries| state("spinlocks", true).with("retries", retries));
        let vendor = hyperv.vendor_id.as_ref().map(|vendor| state("vendor_id", true).with("value", vendor));
        all = all.child(
            Element::new("hyperv").with("mode", "custom").child(switches).child(spinlocks).child(vendor),
        );
    }
    if features.kvm_hidden {
        all = all.child(Element::new("kvm").child(state("hidden", true)));
    }
    all.child(features.pvspinlock.map(|on| state("pvspinlock", on)))
        .child(features.smm.map(|on| state("smm", on)))
        .child(state("vmport", false))
}

/// Clock and timers.
pub(super) fn clock(clock: &Clock) -> Element {
    let element = Element::new("clock");
    let (element, timers) = match clock {
        Clock::Utc(timers) => (element.with("offset", "utc").with("adjustment", "reset"), timers),
        Clock::Offset(seconds, timers) => {
            (element.with("offset", "variable").with("adjustment", seconds).with("basis", "utc"), timers)
        }
        Clock::Timezone(zone, timers) => (element.with("offset", "timezone").with("timezone", zone), timers),
    };
    element.child(timers.iter().map(timer))
}

fn timer(timer: &Timer) -> Element {
    Element::new("timer")
        .with("name", timer.name.word())
        .with_some("tickpolicy", timer.tick_policy.map(Word::word))
        .with_some("track", timer.track.map(Word::word))
        .with("present", yes_no(timer.present))
}
