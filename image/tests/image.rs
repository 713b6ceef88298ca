//! The image as any other tool would read it: the same bytes for the same input, one tag per program, what pods expect.

#![expect(clippy::cast_precision_loss, reason = "a size for people")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use flate2::read::GzDecoder;
use image::product::{FOLDER, MANAGER, PROGRAMS, SETS, SIZE_DETECTION};
use serde_json::Value;

/// Release programs are stood in for; the packages of the lowest layer are real.
fn target(folder: &Path) -> PathBuf {
    let target = folder.join("target");
    for program in PROGRAMS {
        let file = target.join(program.built("release"));
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, format!("stands in for {}", program.name)).unwrap();
    }
    target
}

/// The package cache of `make image`. With FERROVIRT_SOAK they are downloaded for every build.
fn cache() -> Option<PathBuf> {
    let fresh = std::env::var_os("FERROVIRT_SOAK").is_some();
    (!fresh).then(|| Path::new(&std::env::var_os("HOME").unwrap()).join(".cache/ferrovirt/image"))
}

/// Builds in `folder`; returns the program's output.
fn build(folder: &Path) -> String {
    let mut image = Command::new(env!("CARGO_BIN_EXE_image"));
    image.arg("--target").arg(target(folder));
    if let Some(cache) = cache() {
        image.arg("--cache").arg(cache);
    }
    let run = image.arg(folder.join("image.tar")).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    String::from_utf8(run.stdout).unwrap()
}

fn members(archive: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut tar = tar::Archive::new(fs::File::open(archive).unwrap());
    let member = |entry: std::io::Result<tar::Entry<'_, fs::File>>| {
        let mut entry = entry.unwrap();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        (entry.path().unwrap().to_str().unwrap().to_owned(), content)
    };
    tar.entries().unwrap().map(member).collect()
}

fn document(members: &BTreeMap<String, Vec<u8>>, digest: &Value) -> Value {
    let name = format!("blobs/{}", digest.as_str().unwrap().replace(':', "/"));
    serde_json::from_slice(&members[&name]).unwrap()
}

#[test]
fn two_builds_in_different_folders_are_the_same_and_hold_what_pods_expect() {
    let [one, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let [said, said_again] = [&one, &other].map(|folder| build(folder.path()));
    let digest = |said: &str| said.lines().next().unwrap().split(' ').nth(1).unwrap().to_owned();
    assert_eq!(digest(&said), digest(&said_again));
    let archives = [&one, &other].map(|folder| fs::read(folder.path().join("image.tar")).unwrap());
    assert!(archives[0] == archives[1], "the archives differ");

    let members = members(&one.path().join("image.tar"));
    let index: Value = serde_json::from_slice(&members["index.json"]).unwrap();
    let manifests = index["manifests"].as_array().unwrap();
    assert_eq!(manifests.len(), PROGRAMS.len());
    let mut layers = Vec::new();
    for (program, entry) in PROGRAMS.iter().zip(manifests) {
        assert_eq!(entry["annotations"]["org.opencontainers.image.ref.name"], program.name);
        let manifest = document(&members, &entry["digest"]);
        let config = document(&members, &manifest["config"]["digest"]);
        assert_eq!(config["config"]["Entrypoint"][0], format!("/{FOLDER}/{}", program.name));
        assert_eq!(config["config"]["Entrypoint"].as_array().unwrap().len(), 1);
        // The kubelet compares numbers only: a name would keep a pod with runAsNonRoot from starting.
        let user = program.user.map_or(Value::Null, |user| Value::String(format!("{user}:{user}")));
        assert_eq!(config["config"]["User"], user, "{}", program.name);
        layers.push(manifest["layers"].clone());
    }
    assert!(layers.windows(2).all(|pair| pair[0] == pair[1]), "all tags have the same layers");
    assert_eq!(layers[0].as_array().unwrap().len(), PROGRAMS.len() + 1);

    let digest = layers[0][0]["digest"].as_str().unwrap().replace(':', "/");
    let mut root = tar::Archive::new(GzDecoder::new(&members[&format!("blobs/{digest}")][..]));
    let mut found = Vec::new();
    for entry in root.entries().unwrap() {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().to_str().unwrap().trim_start_matches("./").to_owned();
        if name == "etc/passwd" {
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            assert!(text.contains("\nqemu:x:107:107:"), "{text}");
        }
        found.push(name);
    }
    let has = |names: &[&str]| names.iter().any(|name| found.iter().any(|entry| entry == name));
    assert!(has(&["etc/passwd"]) && has(&["etc/ssl/certs/ca-certificates.crt"]));
    assert_takes_plugins(&members, &layers[0]);
    assert_offers_a_client(&members, &layers[0]);
    let macpool = PROGRAMS.iter().position(|program| program.name == "macpool").unwrap();
    let folder = unpacked(&members, &layers[0][macpool + 1]["digest"]);
    assert_eq!(fs::read_link(folder.path().join(MANAGER)).unwrap(), Path::new("/usr/bin/macpool"));
    let importer = PROGRAMS.iter().position(|program| program.name == "importer").unwrap();
    let folder = unpacked(&members, &layers[0][importer + 1]["digest"]);
    assert_eq!(fs::read_link(folder.path().join(SIZE_DETECTION)).unwrap(), Path::new("/usr/bin/importer"));
    for name in [
        "importer",
        "cdi-source-update-poller",
        "uploadserver",
        "uploadproxy",
        "clone-source",
        "macpool",
        "operator",
    ] {
        let program = PROGRAMS.iter().find(|program| program.name == name).unwrap();
        assert!(program.user.is_some_and(|user| user != 0), "{name}");
    }
    assert!(has(&["usr/bin/sh", "bin/sh"]) && has(&["usr/bin/cp", "bin/cp"]));
    assert!(has(&["usr/sbin/mkfs.xfs", "sbin/mkfs.xfs"]) && has(&["usr/sbin/mkfs.ext4", "sbin/mkfs.ext4"]));
    assert!(!found.iter().any(|name| name.contains("/python3")), "a small image");
}

/// A layer's files.
fn unpacked(members: &BTreeMap<String, Vec<u8>>, digest: &Value) -> tempfile::TempDir {
    let digest = digest.as_str().unwrap().replace(':', "/");
    let folder = tempfile::tempdir().unwrap();
    let layer = GzDecoder::new(&members[&format!("blobs/{digest}")][..]);
    tar::Archive::new(layer).unpack(folder.path()).unwrap();
    folder
}

/// The cluster network addons operator's DaemonSet copies the plugins out of the image by these paths.
fn assert_takes_plugins(members: &BTreeMap<String, Vec<u8>>, layers: &Value) {
    let index = PROGRAMS.iter().position(|program| program.name == "cni").unwrap();
    let folder = unpacked(members, &layers[index + 1]["digest"]);
    let plugins = folder.path().join(image::product::PLUGINS);
    for name in image::product::TAKEN {
        assert_eq!(fs::read_link(plugins.join(name)).unwrap(), Path::new("/usr/bin/cni"));
        let checksum = fs::read_to_string(plugins.join(format!("{name}.checksum"))).unwrap();
        let told = Command::new("sha256sum").arg(folder.path().join("usr/bin/cni")).output().unwrap().stdout;
        let told = String::from_utf8(told).unwrap();
        assert_eq!(checksum.split("  ").next(), told.split("  ").next());
    }
}

/// The archive that the upload proxy's process serves holds the client.
fn assert_offers_a_client(members: &BTreeMap<String, Vec<u8>>, layers: &Value) {
    let index = PROGRAMS.iter().position(|program| program.name == "kubectl-virt").unwrap();
    let digest = layers[index + 1]["digest"].as_str().unwrap().replace(':', "/");
    let folder = tempfile::tempdir().unwrap();
    let layer = GzDecoder::new(&members[&format!("blobs/{digest}")][..]);
    tar::Archive::new(layer).unpack(folder.path()).unwrap();
    let (path, name) = image::product::DOWNLOAD;
    let archive = fs::File::open(folder.path().join(path)).unwrap();
    tar::Archive::new(GzDecoder::new(archive)).unpack(folder.path()).unwrap();
    let content = fs::read_to_string(folder.path().join(name)).unwrap();
    assert_eq!(content, "stands in for kubectl-virt");
}

#[test]
fn the_containerfile_describes_the_same_images() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("Containerfile");
    let text = fs::read_to_string(file).unwrap();
    for (set, program) in SETS.iter().flat_map(|set| set.programs.iter().map(move |program| (set, program))) {
        let name = program.name;
        let copied = format!("COPY --chmod=755 {} /{FOLDER}/{name}\n", program.built("release"));
        let user = program.user.map(|user| format!("USER {user}:{user}\n")).unwrap_or_default();
        let stage = format!("FROM {} AS {name}\n{user}ENTRYPOINT [\"/{FOLDER}/{name}\"]\n", set.name);
        assert!(text.contains(&copied) && text.contains(&stage), "{name} in the Containerfile:\n{text}");
        let missing: Vec<_> =
            set.root.packages.split(',').filter(|package| !text.contains(package)).collect();
        assert!(missing.is_empty(), "packages that the Containerfile does not install: {missing:?}");
    }
    let programs: usize = SETS.iter().map(|set| set.programs.len()).sum();
    assert_eq!(text.matches("\nENTRYPOINT").count(), programs);
}

/// The archives that `make image` has built, with the real programs.
#[test]
fn the_images_are_small() {
    for (variable, limit) in [("FERROVIRT_IMAGE", 140 << 20), ("FERROVIRT_LAUNCHER_IMAGE", 200 << 20)] {
        let archive = std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_file());
        let Some(archive) = archive else {
            panic!("{variable} does not name an image: run the tests by `make test`, or `make image`");
        };
        let size = fs::metadata(archive).unwrap().len();
        println!("{variable}: {:.1} MiB", size as f64 / f64::from(1 << 20));
        assert!(size < limit, "{variable}: {size} bytes");
    }
}
