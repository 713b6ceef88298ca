//! What libvirt reports about the host and its emulator, for the labels of a node. The texts are read as libvirt writes them:
//! an element a line.

use api::launcher::capabilities::{Capabilities, Processors, Tsc};

use super::{Connection, Failure, between};

/// Asks libvirt about an emulator, with KVM and without. Libvirt keeps what it probes in its folder.
///
/// # Errors
/// The emulator cannot be probed.
pub(crate) fn capabilities(connection: &Connection, emulator: &str) -> Result<Capabilities, Failure> {
    let of = |kind: &str| -> Result<Processors, Failure> {
        let domain = connection.domain_capabilities(emulator, kind)?;
        let expanded = match host_model(&domain) {
            // Without them the labels of features are the kernel's.
            Some(model) => {
                connection.expanded(emulator, kind, &format!("<cpu>{model}</cpu>")).unwrap_or_default()
            }
            None => String::new(),
        };
        Ok(processors(&domain, &expanded))
    };
    let emulation = Some(of("qemu")?);
    // Without KVM, or a right to use it, this fails.
    let kvm = of("kvm").ok();
    let host = connection.capabilities()?;
    Ok(Capabilities { machines: machines(&host), tsc: tsc(&host), kvm, emulation })
}

/// The processor of `host-model`, where there is one.
fn host_model(domain: &str) -> Option<&str> {
    between(domain, "<mode name='host-model' supported='yes'>", "</mode>")
}

/// From the description of a domain's capabilities, and its `host-model` with all features.
fn processors(domain: &str, expanded: &str) -> Processors {
    let host = host_model(domain).unwrap_or_default();
    let named = between(host, "<model", "</model>").and_then(|model| model.split_once('>'));
    let custom = between(domain, "<mode name='custom' supported='yes'>", "</mode>").unwrap_or_default();
    let usable = custom.lines().filter(|line| line.contains(" usable='yes'"));
    let hyperv = between(domain, "<hyperv supported='yes'>", "</hyperv>").unwrap_or_default();
    let hyperv = hyperv.lines().filter_map(|line| between(line, "<value>", "</value>"));
    Processors {
        encryption: encryption(domain),
        models: usable.filter_map(|line| between(line, ">", "</model>")).map(str::to_owned).collect(),
        host_model: named.map(|(_, model)| model.to_owned()),
        vendor: between(host, "<vendor>", "</vendor>").map(str::to_owned),
        required: required(host),
        features: required(expanded),
        hyperv: hyperv.map(str::to_owned).collect(),
    }
}

/// Kinds of encryption of guests' memory, from the description of a domain's capabilities.
fn encryption(domain: &str) -> Vec<String> {
    let sev = between(domain, "<sev supported='yes'>", "</sev>");
    // As upstream: guests with encrypted registers have address space identifiers of their own.
    let registers = sev.and_then(|sev| between(sev, "<maxESGuests>", "</maxESGuests>"));
    let registers = registers.is_some_and(|count| count.parse::<u64>().is_ok_and(|count| count > 0));
    let found =
        [("sev", sev.is_some()), ("sev-es", registers), ("tdx", domain.contains("<tdx supported='yes'"))];
    found.into_iter().filter(|(_, is_there)| *is_there).map(|(name, _)| name.to_owned()).collect()
}

/// Features that a processor has.
fn required(processor: &str) -> Vec<String> {
    let lines = processor.lines().filter(|line| line.contains("<feature policy='require'"));
    lines.filter_map(|line| between(line, "name='", "'")).map(str::to_owned).collect()
}

/// Machine types of x86-64, from the description of the host.
fn machines(host: &str) -> Vec<String> {
    let arch = between(host, "<arch name='x86_64'>", "</arch>").unwrap_or_default();
    let lines = arch.lines().filter(|line| line.trim_start().starts_with("<machine "));
    let mut all: Vec<String> =
        lines.filter_map(|line| between(line, ">", "</machine>")).map(str::to_owned).collect();
    all.sort();
    // A kind of domain may repeat those of the emulator.
    all.dedup();
    all
}

/// The time stamp counter of the host.
fn tsc(host: &str) -> Option<Tsc> {
    let counter = host.lines().find(|line| line.contains("<counter name='tsc'"))?;
    let frequency = between(counter, "frequency='", "'")?.parse().ok()?;
    Some(Tsc { frequency, scalable: between(counter, "scaling='", "'") == Some("yes") })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOMAIN: &str = "\
<domainCapabilities>
  <machine>pc-q35-7.2</machine>
  <cpu>
    <mode name='host-passthrough' supported='no'/>
    <mode name='host-model' supported='yes'>
      <model fallback='forbid'>EPYC</model>
      <vendor>AMD</vendor>
      <feature policy='require' name='pku'/>
      <feature policy='disable' name='vme'/>
    </mode>
    <mode name='custom' supported='yes'>
      <model usable='yes' vendor='unknown'>qemu64</model>
      <model usable='no' vendor='AMD'>phenom</model>
      <model usable='yes' vendor='Intel'>Penryn</model>
    </mode>
  </cpu>
  <devices>
    <disk supported='yes'>
      <enum name='bus'>
        <value>scsi</value>
      </enum>
    </disk>
  </devices>
  <features>
    <hyperv supported='yes'>
      <enum name='features'>
        <value>spinlocks</value>
        <value>vendor_id</value>
      </enum>
    </hyperv>
  </features>
</domainCapabilities>";

    const EXPANDED: &str = "\
<cpu mode='custom' match='exact'>
  <model fallback='forbid'>EPYC</model>
  <feature policy='require' name='aes'/>
  <feature policy='require' name='pku'/>
  <feature policy='disable' name='vme'/>
</cpu>";

    const HOST: &str = "\
<capabilities>
  <host>
    <cpu>
      <arch>x86_64</arch>
      <counter name='tsc' frequency='2445404000' scaling='yes'/>
    </cpu>
  </host>
  <guest>
    <arch name='i686'>
      <machine maxCpus='255'>isapc</machine>
    </arch>
  </guest>
  <guest>
    <arch name='x86_64'>
      <machine maxCpus='288'>pc-q35-7.2</machine>
      <machine canonical='pc-q35-7.2' maxCpus='288'>q35</machine>
      <domain type='qemu'/>
      <domain type='kvm'>
        <machine maxCpus='288'>pc-q35-7.2</machine>
      </domain>
    </arch>
  </guest>
</capabilities>";

    #[test]
    fn usable_models_and_features_of_the_host_model_are_found() {
        let found = processors(DOMAIN, EXPANDED);
        assert_eq!(found.models, ["qemu64", "Penryn"]);
        assert_eq!((found.host_model.as_deref(), found.vendor.as_deref()), (Some("EPYC"), Some("AMD")));
        assert_eq!(
            (found.required, found.features),
            (vec!["pku".to_owned()], vec!["aes".into(), "pku".into()])
        );
        assert_eq!(found.hyperv, ["spinlocks", "vendor_id"]);
        assert_eq!(processors("", ""), Processors::default());
    }

    #[test]
    fn kinds_of_memory_encryption_are_those_that_domains_can_have() {
        let sev = |guests: u32| {
            format!(
                "<features>\n  <sev supported='yes'>\n    <cbitpos>51</cbitpos>\n    <maxGuests>509</maxGuests>\n    \
                 <maxESGuests>{guests}</maxESGuests>\n  </sev>\n</features>"
            )
        };
        assert_eq!(encryption(&sev(0)), ["sev"]);
        assert_eq!(encryption(&sev(99)), ["sev", "sev-es"]);
        assert_eq!(encryption("<tdx supported='yes'/>"), ["tdx"]);
        assert_eq!(encryption("<sev supported='no'/>\n<tdx supported='no'/>"), Vec::<String>::new());
        assert_eq!(processors(&sev(1), "").encryption, ["sev", "sev-es"]);
    }

    #[test]
    fn machine_types_and_the_time_stamp_counter_are_the_hosts() {
        assert_eq!(machines(HOST), ["pc-q35-7.2", "q35"]);
        assert_eq!(tsc(HOST), Some(Tsc { frequency: 2_445_404_000, scalable: true }));
        assert_eq!((machines("").len(), tsc("")), (0, None));
    }
}
