//! From a user's YAML to libvirt's XML, a pair of files in `tests/domain` for every feature; each XML is accepted by
//! libvirt's own schema. With FERROVIRT_BLESS=1 the XML files are rewritten.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use api::launch::{Launch, Layout, System};
use virt_launcher as launcher;

use crate::support;

fn accepted_by_libvirt(file: &Path) {
    let output = Command::new("virt-xml-validate").arg(file).arg("domain").output();
    let output = output.expect("virt-xml-validate is there (make deps)");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}{}", file.display(), String::from_utf8_lossy(&output.stdout));
}

fn compare(name: &str) {
    let launch = support::launch(&support::golden(name), Layout::default());
    // The launcher sees what went over the socket.
    let launch = Launch::read(&launch.write().unwrap()).unwrap();
    let domain = launcher::domain(&launch).unwrap();
    let file = support::beside("domain").join(format!("{name}.xml"));
    if std::env::var_os("FERROVIRT_BLESS").is_some() {
        fs::write(&file, &domain.xml).unwrap();
    }
    assert_eq!(domain.xml, fs::read_to_string(&file).unwrap(), "{name}");
    accepted_by_libvirt(&file);
    // Given its own layout back, the same guest is the same domain.
    let again = launcher::domain(&Launch { layout: domain.layout.clone(), ..launch }).unwrap();
    assert_eq!(again, domain, "{name}");
}

macro_rules! golden {
    ($($test:ident: $name:literal,)*) => {
        const NAMES: &[&str] = &[$($name,)*];
        $(
            #[test]
            fn $test() {
                compare($name);
            }
        )*
    };
}

golden! {
    minimal: "minimal",
    defaults: "defaults",
    buses: "buses",
    disk_options: "disk-options",
    threads_shared: "threads-shared",
    threads_auto: "threads-auto",
    threads_pool: "threads-pool",
    images: "images",
    media: "media",
    bios: "bios",
    efi: "efi",
    efi_secure: "efi-secure",
    devices: "devices",
    bare: "bare",
    growth: "growth",
    huge_pages: "huge-pages",
    windows: "windows",
    networks: "networks",
    transitional: "transitional",
    paused: "paused",
    pci_addresses: "pci-addresses",
    many_sata: "many-sata",
    kernel: "kernel",
    host_devices: "host-devices",
    mediated_devices: "mediated-devices",
    usb_channels: "usb-channels",
    usb_devices: "usb-devices",
}

#[test]
fn strings_of_the_platform_take_the_place_of_the_default_ones() {
    let given = |text: &str| Some(text.to_owned());
    let mut launch = support::launch(&support::golden("minimal"), Layout::default());
    launch.smbios.system = System {
        manufacturer: given("Example"),
        product: given("Cloud & more"),
        version: given("7"),
        sku: given("C-7"),
        family: given("Clouds"),
    };
    let launch = Launch::read(&launch.write().unwrap()).unwrap();
    let domain = launcher::domain(&launch).unwrap();
    for (name, text) in [
        ("manufacturer", "Example"),
        ("product", "Cloud &amp; more"),
        ("version", "7"),
        ("sku", "C-7"),
        ("family", "Clouds"),
    ] {
        let entry = format!("<entry name='{name}'>{text}</entry>");
        assert_eq!(domain.xml.matches(&entry).count(), 1, "{entry}: {}", domain.xml);
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), &domain.xml).unwrap();
    accepted_by_libvirt(file.path());
}

#[test]
fn every_file_is_tested() {
    let files = fs::read_dir(support::beside("domain")).unwrap();
    let files = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    // While the XML is rewritten, not all of it is there.
    let found: BTreeSet<String> =
        files.filter_map(|file| Some(file.strip_suffix(".yaml")?.to_owned())).collect();
    let wanted: BTreeSet<String> = NAMES.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(found, wanted);
}
