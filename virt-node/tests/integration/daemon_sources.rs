//! Disks from wherever they come: container images from an archive and from a registry, S3, Google Cloud Storage, files of
//! the machine, and block volumes, each under a guest that boots from it.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use sources::images::{GZIP, Layer, PASSWORD, USER, archive};
use sources::registry::{Login, Registry, Store, Tls};
use sources::{gcs, s3};

use crate::support::daemon::{Daemon, bootable, code, eventually, instance, machine};

/// The one layer of an image with a disk.
fn layer() -> Layer {
    Layer::new(GZIP, &[("disk/disk.img", &bootable(code::HALTS))])
}

/// A CA as a ConfigMap.
fn authority(pem: &str) -> String {
    let pem = serde_json::to_string(pem).unwrap();
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: ca}}\ndata: {{ca.crt: {pem}}}\n---\n")
}

#[test]
fn a_container_disk_comes_from_an_archive_and_what_is_written_is_lost() {
    let daemon = Daemon::start();
    let file = daemon.path("image.tar");
    fs::write(&file, archive(&[("latest", layer())])).unwrap();
    let image = format!("containerDisk: {{image: \"oci-archive:{}\"}}", file.display());
    daemon.run(&instance("one", &image));
    daemon.until_serial("one", "K");
    daemon.run(&instance("two", &image));
    daemon.until_serial("two", "K");
    assert_eq!(daemon.names("images").len(), 1, "fetched once");
    let overlay = daemon.run_root("two").unwrap().join("root.qcow2");
    assert_eq!(fs::metadata(overlay).unwrap().uid(), daemon.user("two"));
    assert_ne!(daemon.user("one"), daemon.user("two"), "each VM has a user of its own");
    for name in ["vmi/one", "vmi/two"] {
        daemon.says(&["delete", name]);
    }
    assert_eq!(daemon.names("images"), Vec::<String>::new());
    // A missing one is reported by its name, and the guest shows that it waits for it.
    let gone = instance("gone", "containerDisk: {image: \"oci-archive:/nowhere/image.tar\"}");
    let document = daemon.path("gone.yaml");
    fs::write(&document, gone).unwrap();
    let output = daemon.command(&["run", "--detach", document.to_str().unwrap()]);
    let told =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && told.contains("/nowhere/image.tar"), "{told}");
    daemon.says(&["delete", "vmi/gone"]);
}

#[test]
fn guests_of_an_image_that_is_always_fetched_have_it_whole() {
    let daemon = Daemon::start();
    let file = daemon.path("image.tar");
    fs::write(&file, archive(&[("latest", layer())])).unwrap();
    let image =
        format!("containerDisk: {{image: \"oci-archive:{}\", imagePullPolicy: Always}}", file.display());
    let names: Vec<String> = (0..6).map(|n| format!("guest-{n}")).collect();
    let documents: Vec<String> = names.iter().map(|name| instance(name, &image)).collect();
    let said = daemon.run(&documents.join("---\n"));
    // None had to be tried again because of another one's.
    assert!(!said.contains("ErrImagePull") && !said.contains("StartFailed"), "{said}");
    for name in &names {
        daemon.until_serial(name, "K");
    }
    // Nobody's process may write what all of them read.
    let own = daemon.run_root(&names[0]).unwrap().join("root.image");
    let facts = fs::metadata(own).unwrap();
    assert_eq!((facts.uid(), facts.mode() & 0o777), (0, 0o440));
    assert!(facts.gid() >= 1_900_000_000, "a group of its own reads it");
    for name in &names {
        daemon.says(&["delete", &format!("vmi/{name}")]);
    }
    assert_eq!(daemon.names("images"), Vec::<String>::new());
}

/// An image for another processor was imported, and the guest did not boot.
#[test]
fn an_image_of_another_architecture_is_named_by_the_data_volume() {
    let daemon = Daemon::start();
    let (store, tls) = (Store::start(), Tls::make());
    store.push("vm/disk", "1", &[layer()]);
    let registry = Registry::start(store.path(), Some(&tls), &Login::Open);
    let pem = fs::read_to_string(tls.folder.path().join("certs/ca.crt")).unwrap();
    let volume = |name: &str, architecture: &str| {
        format!(
            "apiVersion: cdi.kubevirt.io/v1beta1\nkind: DataVolume\nmetadata: {{name: {name}}}\nspec:\n  \
             source: {{registry: {{url: \"{}\", certConfigMap: ca, platform: {{architecture: {architecture}}}}}}}\n  \
             storage: {{resources: {{requests: {{storage: 8Mi}}}}}}\n",
            registry.image("vm/disk:1")
        )
    };
    let file = daemon.path("foreign.yaml");
    fs::write(&file, authority(&pem) + &volume("foreign", "arm64")).unwrap();
    let output = daemon.command(&["run", file.to_str().unwrap()]);
    let text = "the image is for linux/amd64, and linux/arm64 was asked for";
    let told =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && told.contains(text), "{told}");
    let status = daemon.object("dv/foreign").unwrap()["status"].clone();
    let running = status["conditions"].as_array().unwrap().iter().find(|one| one["type"] == "Running");
    let running = running.unwrap();
    assert_eq!(running["status"], "False");
    assert!(running["message"].as_str().unwrap().contains(text), "{running}");
    assert_ne!(status["phase"], "Succeeded");
    let said = daemon.run(&volume("own", "amd64"));
    eventually("it is filled", || (daemon.object("dv/own")?["status"]["phase"] == "Succeeded").then_some(()));
    assert!(!said.contains("was asked for"), "{said}");
    for name in ["dv/foreign", "dv/own"] {
        daemon.says(&["delete", name]);
    }
}

#[test]
fn a_shared_disk_is_written_by_its_guests_alone_and_by_their_group() {
    let daemon = Daemon::start();
    let claim = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: shared}\n\
                 spec: {accessModes: [ReadWriteMany], resources: {requests: {storage: 8Mi}}}\n";
    daemon.run(claim);
    let guest = |name: &str, shareable: bool| {
        let more = if shareable { ", {name: both, shareable: true, cache: none}" } else { "" };
        let volume =
            if shareable { "\n  - {name: both, persistentVolumeClaim: {claimName: shared}}" } else { "" };
        instance(name, "emptyDisk: {capacity: 1Mi}")
            .replace("disks: [{name: root}]", &format!("disks: [{{name: root}}{more}]"))
            .trim_end()
            .to_owned()
            + volume
            + "\n"
    };
    let (names, other) = (["one", "two"], "other");
    for name in names {
        daemon.run(&guest(name, true));
    }
    daemon.run(&guest(other, false));
    let uid = daemon.object("pvc/shared").unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
    let disk = daemon
        .mounts()
        .into_iter()
        .map(|mount| std::path::Path::new(&mount).join("disk.img"))
        .find(|disk| disk.to_string_lossy().contains(&uid[..8]) && disk.is_file());
    let facts = fs::metadata(disk.unwrap_or_else(|| panic!("{:?}", daemon.mounts()))).unwrap();
    assert_eq!((facts.uid(), facts.mode() & 0o777), (0, 0o660), "root's, and its group writes");
    for name in names {
        let groups = groups_of(&daemon, name);
        assert!(groups.contains(&facts.gid()), "{name}: {groups:?}");
    }
    assert!(
        !groups_of(&daemon, other).contains(&facts.gid()),
        "a guest without the disk is not in its group"
    );
    assert_ne!(daemon.user("one"), daemon.user("two"));
    for name in ["vmi/one", "vmi/two", "vmi/other", "pvc/shared"] {
        daemon.says(&["delete", name]);
    }
}

/// Groups of a guest's QEMU.
fn groups_of(daemon: &Daemon, name: &str) -> Vec<u32> {
    let user = daemon.user(name);
    let qemu = daemon.processes().into_iter().find(|(id, line)| {
        line.contains("qemu-system")
            && fs::metadata(format!("/proc/{id}")).is_ok_and(|facts| facts.uid() == user)
    });
    let status = fs::read_to_string(format!("/proc/{}/status", qemu.unwrap().0)).unwrap();
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap();
    groups.split_whitespace().map(|group| group.parse().unwrap()).collect()
}

/// The second guest's start took the file from the first.
#[test]
fn a_shared_file_of_the_machine_is_written_by_the_group_of_its_guests() {
    let daemon = Daemon::start();
    let image = daemon.image("disk.img", code::HALTS);
    for name in ["one", "two"] {
        daemon.run(&instance(
            name,
            &format!("hostDisk: {{path: \"{}\", type: Disk, shared: true}}", image.display()),
        ));
        daemon.until_serial(name, "K");
    }
    let facts = fs::metadata(&image).unwrap();
    assert_eq!((facts.uid(), facts.mode() & 0o777), (0, 0o660), "root's, and its group writes");
    for name in ["one", "two"] {
        let groups = groups_of(&daemon, name);
        assert!(groups.contains(&facts.gid()), "{name}: {groups:?}");
        daemon.says(&["delete", &format!("vmi/{name}")]);
    }
}

#[test]
fn images_come_from_a_registry_with_a_password_over_tls() {
    let daemon = Daemon::start();
    let (store, tls) = (Store::start(), Tls::make());
    store.push("vm/disk", "1", &[layer()]);
    let registry = Registry::start(store.path(), Some(&tls), &Login::Password);
    let open = Registry::start(store.path(), None, &Login::Open);
    let pem = fs::read_to_string(tls.certs().join("ca.crt")).unwrap();
    let login = format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: login}}\nstringData: {{accessKeyId: {USER}, secretKey: \"{PASSWORD}\"}}\n---\n"
    );
    let source = format!(
        "{{registry: {{url: \"{}\", secretRef: login, certConfigMap: ca}}}}",
        registry.image("vm/disk:1")
    );
    daemon.run(&format!("{}{login}{}", authority(&pem), machine("mine", "Always", &source, "")));
    daemon.until_serial("mine", "K");
    daemon.says(&["delete", "mine", "--force"]);
    // A container image has no ConfigMap to trust: the registry is one without TLS on this machine, as others' are.
    let image = open.image("vm/disk:1");
    let image = image.strip_prefix("docker://").unwrap();
    daemon.run(&instance("image", &format!("containerDisk: {{image: \"{image}\"}}")));
    daemon.until_serial("image", "K");
    daemon.says(&["delete", "vmi/image"]);
}

#[test]
fn disks_come_from_object_stores() {
    let daemon = Daemon::start();
    let store = s3::Server::start(&bootable(code::HALTS), usize::MAX, true);
    let keys = "apiVersion: v1\nkind: Secret\nmetadata: {name: keys}\nstringData: {accessKeyId: KEY, secretKey: SECRET}\n---\n";
    let source = format!(
        "{{s3: {{url: \"https://{}/images/dir/disk.img\", secretRef: keys, certConfigMap: ca}}}}",
        store.address
    );
    daemon.run(&format!("{}{keys}{}", authority(&store.pem), machine("three", "Always", &source, "")));
    daemon.until_serial("three", "K");
    let google = gcs::Fake::start(bootable(code::HALTS));
    let account = serde_json::to_string(&google.account()).unwrap();
    let secret = format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: account}}\nstringData: {{credentials.json: {account}}}\n---\n"
    );
    let source = "{gcs: {url: \"gs://bucket/dir/disk.img\", secretRef: account}}";
    daemon.run(&format!("{secret}{}", machine("four", "Always", source, "")));
    daemon.until_serial("four", "K");
    for name in ["three", "four"] {
        daemon.says(&["delete", name, "--force"]);
    }
}

#[test]
fn disks_are_files_of_the_machine_and_block_devices() {
    let daemon = Daemon::start();
    let image = daemon.image("disk.img", code::HALTS);
    let disk = format!("hostDisk: {{path: \"{}\", type: Disk}}", image.display());
    daemon.run(&instance("host", &disk));
    daemon.until_serial("host", "K");
    daemon.says(&["delete", "vmi/host"]);
    assert!(image.exists(), "what is the machine's stays");
    let source = format!("{{http: {{url: \"file://{}\"}}}}", image.display());
    let made = daemon.path("made.img");
    let more = format!(
        "      - {{name: made, hostDisk: {{path: \"{}\", type: DiskOrCreate, capacity: 1Mi}}}}\n",
        made.display()
    );
    let block = machine("block", "Always", &source, "")
        .replace("storage: {resources:", "storage: {volumeMode: Block, resources:")
        .replace("disks: [{name: root}]", "disks: [{name: root}, {name: made}]")
        + &more;
    daemon.run(&block);
    daemon.until_serial("block", "K");
    assert_eq!(fs::metadata(&made).unwrap().len(), 1 << 20);
    let uid = daemon.object("pvc/block-root").unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
    let device = daemon.state().join("claims").join(uid).join("dev/cdi-block-volume");
    let facts = fs::metadata(&device).unwrap();
    assert!(facts.file_type().is_block_device() && facts.uid() == daemon.user("block"));
    let found = || daemon.processes().into_iter().find(|(_, line)| line.contains("qemu-system"));
    let (qemu, _) = eventually("QEMU", found);
    let open = fs::read_dir(format!("/proc/{qemu}/fd")).unwrap();
    let mut targets = open.filter_map(|fd| fs::read_link(fd.unwrap().path()).ok());
    assert!(targets.any(|target| target == device), "QEMU has the device");
    daemon.says(&["delete", "block", "--force"]);
    assert_eq!(daemon.mounts(), Vec::<String>::new());
    assert_eq!(daemon.names("claims"), Vec::<String>::new());
}
